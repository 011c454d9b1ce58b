// The end of `main` of a kernel of products on matrix units that multiply bf16 (`matmul_bf16`, `matmul_fragments`).
// shared/product has its beginning.
//
// Defines: FM, FN   fragments of each subgroup, down and across
//          EACH     lines that an invocation stores at once, of a row of the subgroup's fragments: ⌈32·FN/SUBGROUP⌉
//          Y_PITCH  the distance between rows of the result

// Stores the sums, a row of each subgroup's fragments at a time, through places of its own. So subgroups wait for no
// other. The operands of merged work are read before the sums.
#macro store_rows()
    let member = lane % SUBGROUP;
    let own = subgroup * 16u * (4u * FN + 1u);
#for I in FM
#for E in EACH
    let place_${I}_${E} = ${E}u * SUBGROUP + member;
    let row_${I}_${E} = row0 + (y + ${I}u) * 16u + place_${I}_${E} / (2u * FN);
    let column_${I}_${E} = column0 + x * 16u + place_${I}_${E} % (2u * FN) * 8u;
    let there_${I}_${E} = place_${I}_${E} < 32u * FN && row_${I}_${E} < ROWS && column_${I}_${E} < COLUMNS;
    let to_${I}_${E} = ((part * BATCH + batch) * ROWS + row_${I}_${E}) * ${Y_PITCH}u + column_${I}_${E};
    let epilogue_${I}_${E} = epilogue(select(0u, to_${I}_${E}, there_${I}_${E}));
#endfor
    subgroupBarrier();
#for J in FN
    let own_${I}_${J} = own + ${J}u * 4u;
    coopStoreT(sum_${I}_${J}, &places[own_${I}_${J}], 4u * FN + 1u);
#endfor
    subgroupBarrier();
#for E in EACH
    if there_${I}_${E} {
        let at = own + place_${I}_${E} / (2u * FN) * (4u * FN + 1u) + place_${I}_${E} % (2u * FN) * 2u;
        finish(epilogue_${I}_${E}, Eight(places[at], places[at + 1u]));
    }
#endfor
#endfor
#endmacro
