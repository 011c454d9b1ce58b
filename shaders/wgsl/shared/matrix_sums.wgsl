    // The sums of the fragments, scaled back. The smaller power first: no product overflows that need not.
    let inverse = powers(-exponents);
    let back = vec2(min(inverse.x, inverse.y), max(inverse.x, inverse.y));
#if PLAIN == none
#if LINES
    // Through memory of the workgroup, one fragment of each subgroup at a time, as pixels of sixteen channels. What is
    // merged is read for all fragments of a row first. Sixteen invocations take the first eight channels, sixteen the
    // others: eight that read pixels beside each other read from different banks.
    let begin_sums = subgroup * 16u * PITCH_LINES;
    let member = lane % SUBGROUP;
#for I in FM
#for J in FN
#for E in EACH
    let place_${I}_${J}_${E} = ${E}u * SUBGROUP + member;
    let row_${I}_${J}_${E} = row0 + (y + ${I}u) * 16u + place_${I}_${J}_${E} / 16u * 8u;
    let column_${I}_${J}_${E} = column0 + (x + ${J}u) * 16u + place_${I}_${J}_${E} % 16u;
    let is_line_${I}_${J}_${E} = place_${I}_${J}_${E} < 32u && is_row(row_${I}_${J}_${E});
    let there_${I}_${J}_${E} = is_line_${I}_${J}_${E} && has_result(column_${I}_${J}_${E});
    let to_${I}_${J}_${E} = result_at(batch, part, row_${I}_${J}_${E}, column_${I}_${J}_${E});
    let epilogue_${I}_${J}_${E} = epilogue(select(0u, to_${I}_${J}_${E}, there_${I}_${J}_${E}));
#endfor
#endfor
#for J in FN
    workgroupBarrier();
    coopStore(sum_${I}_${J}, &sums[begin_sums], PITCH_LINES);
    workgroupBarrier();
#for E in EACH
    if there_${I}_${J}_${E} {
        let at = begin_sums + place_${I}_${J}_${E} % 16u * PITCH_LINES + place_${I}_${J}_${E} / 16u * 2u;
        finish(epilogue_${I}_${J}_${E}, Eight(sums[at] * back.x * back.y, sums[at + 1u] * back.x * back.y));
    }
#endfor
#endfor
#endfor
#else
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
        let there_${E} = is_row(row_${E}) && has_result(column_${E});
        let epilogue_${E} = epilogue(select(0u, result_at(batch, part, row_${E}, column_${E}), there_${E}));
#endfor
#for E in EACH
        if there_${E} {
            finish(epilogue_${E}, sums[begin_sums + place_${E} / 16u * PITCH + place_${E} % 16u] * back.x * back.y);
        }
#endfor
    }
#endfor
#endfor
#endif
#else
#for I in FM
#for J in FN
    let place_${I}_${J} = result_at(batch, part, row0 + (y + ${I}u) * 16u, column0 + (x + ${J}u) * 16u);
    let scaled_${I}_${J} = sum_${I}_${J} * back.x * back.y;
#if LINES
    let line_${I}_${J} = place_${I}_${J} / 4u;
    coopStore(scaled_${I}_${J}, &${PLAIN}[line_${I}_${J}], PITCH_RESULT / 4u);
#else
    coopStoreT(scaled_${I}_${J}, &${PLAIN}[place_${I}_${J}], PITCH_RESULT);
#endif
#endfor
#endfor
#endif
