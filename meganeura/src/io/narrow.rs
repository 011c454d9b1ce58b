//! Floats of at most 16 bits, decoded. All are `f32`s exactly.

/// The upper half of an `f32`.
pub(crate) fn from_bf16(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

/// An IEEE 754 half: 1 sign bit, 5 exponent bits biased by 15, 10 fraction bits.
pub(crate) fn from_f16(bytes: [u8; 2]) -> f32 {
    let bits = u32::from(u16::from_le_bytes(bytes));
    let (sign, exponent, fraction) = ((bits >> 15) << 31, (bits >> 10) & 0x1f, bits & 0x3ff);
    let magnitude = match exponent {
        // Subnormal, in units of 2⁻²⁴, exactly an f32.
        0 => return f32::from_bits((fraction as f32 * 2f32.powi(-24)).to_bits() | sign),
        0x1f => (0xff << 23) | (fraction << 13),
        _ => ((exponent + 127 - 15) << 23) | (fraction << 13),
    };
    f32::from_bits(sign | magnitude)
}

/// A format of at most 8 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Narrow {
    /// NaN has the greatest exponent and fraction. There are no infinities.
    E4M3Fn,
    /// NaN is the negative zero. There are no infinities.
    E4M3Fnuz,
    /// The upper half of an IEEE 754 half.
    E5M2,
    /// NaN is the negative zero. There are no infinities.
    E5M2Fnuz,
    /// A power of 2 by its exponent. NaN has the greatest one. There are no infinities, zeros and signs.
    E8M0,
    /// 4 bits, without NaN and infinities.
    #[cfg(feature = "onnx")]
    E2M1,
}

impl Narrow {
    /// The number of bits of the fraction, and the bias of the exponent.
    pub(crate) fn layout(self) -> (i32, i32) {
        match self {
            Self::E4M3Fn => (3, 7),
            Self::E4M3Fnuz => (3, 8),
            Self::E5M2 => (2, 15),
            Self::E5M2Fnuz => (2, 16),
            Self::E8M0 => (0, 127),
            #[cfg(feature = "onnx")]
            Self::E2M1 => (1, 1),
        }
    }

    /// The number with these bits.
    pub(crate) fn decode(self, byte: u8) -> f32 {
        let is_nan = match self {
            Self::E4M3Fn => byte & 0x7f == 0x7f,
            Self::E4M3Fnuz | Self::E5M2Fnuz => byte == 0x80,
            Self::E8M0 => byte == 0xff,
            Self::E5M2 => return from_f16([0, byte]),
            #[cfg(feature = "onnx")]
            Self::E2M1 => false,
        };
        let (fraction_bits, bias) = self.layout();
        let sign = match self {
            _ if is_nan => return f32::NAN,
            Self::E8M0 => return 2f32.powi(i32::from(byte) - bias),
            #[cfg(feature = "onnx")]
            Self::E2M1 => 0x8,
            _ => 0x80,
        };
        let magnitude = byte & (sign - 1);
        let (exponent, fraction) = (magnitude >> fraction_bits, magnitude & ((1 << fraction_bits) - 1));
        let one = f32::from(1_u8 << fraction_bits);
        let number = match exponent {
            0 => f32::from(fraction) / one * 2f32.powi(1 - bias),
            _ => (1.0 + f32::from(fraction) / one) * 2f32.powi(i32::from(exponent) - bias),
        };
        if byte & sign == 0 { number } else { -number }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The greatest and the smallest number of each format, and its NaN, by their definitions. All other numbers are
    /// compared with PyTorch's.
    #[test]
    fn floats_of_8_bits_are_exact() {
        for (format, greatest, most, least) in [
            (Narrow::E4M3Fn, 0x7e, 448.0, 2f32.powi(-9)),
            (Narrow::E4M3Fnuz, 0x7f, 240.0, 2f32.powi(-10)),
            (Narrow::E5M2, 0x7b, 57_344.0, 2f32.powi(-16)),
            (Narrow::E5M2Fnuz, 0x7f, 57_344.0, 2f32.powi(-17)),
        ] {
            assert_eq!((format.decode(greatest), format.decode(1), format.decode(0x81)), (most, least, -least));
        }
        assert!(Narrow::E4M3Fn.decode(0xff).is_nan() && Narrow::E4M3Fn.decode(0x80).is_sign_negative());
        assert!(Narrow::E4M3Fnuz.decode(0x80).is_nan() && Narrow::E5M2Fnuz.decode(0x80).is_nan());
        let powers = [0, 127, 254].map(|byte| Narrow::E8M0.decode(byte));
        assert_eq!(powers, [2f32.powi(-127), 1.0, 2f32.powi(127)]);
        assert!(Narrow::E8M0.decode(255).is_nan());
    }

    #[cfg(feature = "onnx")]
    #[test]
    fn floats_of_4_bits_are_exact() {
        let numbers = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        for (bits, number) in (0..8).zip(numbers) {
            assert_eq!([bits, bits | 8].map(|bits| Narrow::E2M1.decode(bits)), [number, -number], "{bits}");
        }
    }

    #[test]
    fn halves_are_exact() {
        for (bits, number) in [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (0x0001, 2f32.powi(-24)),
            (0x8400, -2f32.powi(-14)),
            (0x3555, 0.333_251_95),
            (0x7c00, f32::INFINITY),
        ] {
            assert_eq!(from_f16(u16::to_le_bytes(bits)), number, "{bits:x}");
        }
        assert!(from_f16(u16::to_le_bytes(0x7e00)).is_nan() && from_f16([0, 0x80]).is_sign_negative());
    }

    #[test]
    fn brain_floats_are_exact() {
        for (bits, expected) in [(0x3f80, 1.0), (0xc049, -3.140_625), (0x7f80, f32::INFINITY), (0x0001, 9.183_55e-41)] {
            assert_eq!(from_bf16(u16::to_le_bytes(bits)), expected, "{bits:#x}");
        }
        assert!(from_bf16(u16::to_le_bytes(0x7fc0)).is_nan());
    }
}
