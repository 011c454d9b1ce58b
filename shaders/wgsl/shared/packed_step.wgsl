        // A step's products, of operands in the tiles of shared/gemm_packed.
#for U in STEPS
        // Named, because naga's SPIR-V writer does not take them inside of the calls.
#for I in FM
#if A_ALONG == k
        let at_a_${U}_${I} = 16u * (y + ${I}u) * PITCH_A + ${U}u * 4u;
        let a_${U}_${I} = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[at_a_${U}_${I}], PITCH_A);
#else
        let at_a_${U}_${I} = ${U}u * 16u * PITCH_A + 4u * (y + ${I}u);
        let a_${U}_${I} = coopLoad<coop_mat16x16<f16, A>>(&tile_a[at_a_${U}_${I}], PITCH_A);
#endif
#endfor
#for J in FN
#if B_ALONG == k
        let at_b_${U}_${J} = 16u * (x + ${J}u) * PITCH_B + ${U}u * 4u;
        let b_${U}_${J} = coopLoad<coop_mat16x16<f16, B>>(&tile_b[at_b_${U}_${J}], PITCH_B);
#else
        let at_b_${U}_${J} = ${U}u * 16u * PITCH_B + 4u * (x + ${J}u);
        let b_${U}_${J} = coopLoadT<coop_mat16x16<f16, B>>(&tile_b[at_b_${U}_${J}], PITCH_B);
#endif
#for I in FM
        sum_${I}_${J} = coopMultiplyAdd(a_${U}_${I}, b_${U}_${J}, sum_${I}_${J});
#endfor
#endfor
#endfor
