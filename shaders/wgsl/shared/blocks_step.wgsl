        // The products of a step of blocks, which are in half ${H} of the tiles of shared/gemm_matrix.
#for U in STEPS
        // Named, because naga's SPIR-V writer does not take them inside of the calls.
#for I in FM
        let at_a_${H}_${U}_${I} = (${H}u * BK + ${U}u * 16u) * PITCH_A + 4u * (y + ${I}u);
        let a_${H}_${U}_${I} = coopLoad<coop_mat16x16<f16, A>>(&tile_a[at_a_${H}_${U}_${I}], PITCH_A);
#endfor
#for J in FN
        let at_b_${H}_${U}_${J} = (${H}u * BK + ${U}u * 16u) * PITCH_B + 4u * (x + ${J}u);
        let b_${H}_${U}_${J} = coopLoadT<coop_mat16x16<f16, B>>(&tile_b[at_b_${H}_${U}_${J}], PITCH_B);
#for I in FM
        sum_${I}_${J} = coopMultiplyAdd(a_${H}_${U}_${I}, b_${H}_${U}_${J}, sum_${I}_${J});
#endfor
#endfor
#endfor
