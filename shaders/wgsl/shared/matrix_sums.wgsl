    // The sums of the fragments, scaled back. The smaller power first: no product overflows that need not.
    let inverse = powers(-exponents);
    let back = vec2(min(inverse.x, inverse.y), max(inverse.x, inverse.y));
#if PLAIN == none
    // Through memory of the workgroup, one fragment of each subgroup at a time.
    let begin_sums = subgroup * 16u * PITCH;
    let member = lane % SUBGROUP;
#for I in FM
#for J in FN
    workgroupBarrier();
    coopStoreT(sum_${I}_${J}, &sums[begin_sums], PITCH);
    workgroupBarrier();
    {
        // Neighbours store neighbours.
#for E in EACH
        let place_${E} = ${E}u * SUBGROUP + member;
        let row_${E} = row0 + (y + ${I}u) * 16u + place_${E} / 16u;
        let column_${E} = column0 + (x + ${J}u) * 16u + place_${E} % 16u;
        let there_${E} = is_row(row_${E}) && is_column(column_${E});
        let epilogue_${E} = epilogue(select(0u, row_at(batch, part, row_${E}) + column_at(column_${E}), there_${E}));
#endfor
#for E in EACH
        if there_${E} {
            finish(epilogue_${E}, sums[begin_sums + place_${E} / 16u * PITCH + place_${E} % 16u] * back.x * back.y);
        }
#endfor
    }
#endfor
#endfor
#else
#for I in FM
#for J in FN
    let place_${I}_${J} = row_at(batch, part, row0 + (y + ${I}u) * 16u) + column_at(column0 + (x + ${J}u) * 16u);
    let scaled_${I}_${J} = sum_${I}_${J} * back.x * back.y;
    coopStoreT(scaled_${I}_${J}, &${PLAIN}[place_${I}_${J}], PITCH_RESULT);
#endfor
#endfor
#endif
