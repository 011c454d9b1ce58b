    // The sums of the fragments, scaled back, one fragment of each subgroup at a time. The smaller power first: no product overflows
    // that need not.
    let back = vec2(min(scales[2], scales[3]), max(scales[2], scales[3]));
    let begin_sums = subgroup * 16u * PITCH;
    let member = lane % SUBGROUP;
#for I in FM
#for J in FN
    workgroupBarrier();
    coopStoreT(sum_${I}_${J}, &sums[begin_sums], PITCH);
    workgroupBarrier();
    for (var e = member; e < 64u; e += SUBGROUP) {
        let row = row0 + (y + ${I}u) * 16u + e / 4u;
        if is_row(row) {
            let at = begin_sums + e / 4u * PITCH + e % 4u * 4u;
            let four = vec4(sums[at], sums[at + 1u], sums[at + 2u], sums[at + 3u]);
            finish(batch, part, row, column0 + (x + ${J}u) * 16u + e % 4u * 4u, four * back.x * back.y);
        }
    }
#endfor
#endfor
