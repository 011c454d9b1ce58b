    // The workgroup's tile and part of the reduction, and where in the tile its subgroups' fragments begin, whose sums
    // are zero. Not `workgroup_index`: matrix units want control flow that naga knows to be uniform. The remainder says
    // how large it can be: whose line, or which operand's, is then known while compiling.
    let lane = invocation % WG;
    let tile = workgroup.x + workgroup.y * workgroups.x;
    if tile >= BATCH * PARTS * TILES_M * TILES_N {
        return;
    }
    let batch = tile / (PARTS * TILES_M * TILES_N);
    let part = tile / (TILES_M * TILES_N) % PARTS;
    let row0 = tile / TILES_N % TILES_M * BM;
    let column0 = tile % TILES_N * BN;
    let subgroup = lane / SUBGROUP;
    let x = subgroup % SN * FN;
    let y = subgroup / SN * FM;

#for I in FM
#for J in FN
    var sum_${I}_${J}: coop_mat16x16<f32, C>;
#endfor
#endfor
    let begin = part * PART_K;
    let end = min(begin + PART_K, DEPTH);
