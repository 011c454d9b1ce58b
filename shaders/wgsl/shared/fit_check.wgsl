#if BFLOAT
        let fit = true;
#else
        // `fit`: whether `total`, the sum of all fragments of a subgroup, is finite in all subgroups.
        for (var turn = 0u; turn < TURNS; turn += 1u) {
            if subgroup % TURNS == turn {
                coopStoreT(total, &sums[begin_sums], PITCH_SUMS);
            }
            workgroupBarrier();
            if subgroup % TURNS == turn {
                for (var at = lane % SUBGROUP; at < 64u; at += SUBGROUP) {
                    let four = bitcast<vec4<u32>>(sums[begin_sums + at / 4u * PITCH_SUMS + at % 4u]);
                    if any((four & vec4(0x7f800000u)) == vec4(0x7f800000u)) {
                        unfit.x = 1u;
                    }
                }
            }
            workgroupBarrier();
        }
        let fit = workgroupUniformLoad(&unfit).x == 0u;
#endif
