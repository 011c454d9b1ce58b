            // The exponents become the lesser of theirs and those of a block of which invocations hold magnitudes `held`, and the sums are
            // scaled by as much.
            let lower = min(exponents, exponents_of_block(lane, held));
            let by = change(exponents, lower);
#for I in FM
#for J in FN
            sum_${I}_${J} = sum_${I}_${J} * by.x * by.y;
#endfor
#endfor
            exponents = lower;
            scale = powers(exponents);
