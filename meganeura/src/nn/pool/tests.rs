//! Tests of one layer in each number of dimensions.

mod pool1d {
    use super::super::*;
    use crate::nn::AdaptiveAvgPool1d;
    use crate::{ErrorKind, Shape, Tape, Tensor};

    fn input(shape: &[usize]) -> Var {
        let device = Device::cpu();
        let x: Vec<_> = (0..shape.iter().product::<usize>()).map(|i| -(i as f32)).collect();
        Tape::new(&device).input(&Tensor::from_slice(&device, Shape::new(shape), &x).unwrap())
    }

    #[test]
    fn computes_the_formulas() {
        let x = input(&[1, 2, 5]);
        // Negative values: padding with zeros would win.
        let y = MaxPool1d::new(2).padding(1).forward(&x);
        assert_eq!(y.shape(), Shape::from([1, 2, 3]));
        assert_eq!(y.to_vec().unwrap(), [0.0, -1.0, -3.0, -5.0, -6.0, -8.0]);
        assert_eq!(MaxPool1d::new(2).stride(1).dilation(3).forward(&x).to_vec().unwrap(), [0.0, -1.0, -5.0, -6.0]);
        let pool = AvgPool1d::new(3).padding(1).stride(2);
        assert_eq!(pool.forward(&x).to_vec().unwrap()[..3], [-1.0 / 3.0, -2.0, -7.0 / 3.0]);
        assert_eq!(pool.count_include_pad(false).forward(&x).to_vec().unwrap()[..3], [-0.5, -2.0, -3.5]);
        assert_eq!(AdaptiveAvgPool1d::new(2).forward(&x).to_vec().unwrap(), [-1.0, -3.0, -6.0, -8.0]);
    }

    #[test]
    fn senseless_settings_are_errors() {
        let device = Device::cpu();
        let x = input(&[1, 1, 8]);
        let pool = MaxPool1d::new(2);
        for pool in [MaxPool1d::new(0), pool.stride(0), pool.dilation(0), pool.padding(2)] {
            assert_eq!(pool.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
            assert!(pool.forward(&x).error().is_some(), "{pool:?}");
        }
        for pool in [AvgPool1d::new(0), AvgPool1d::new(2).stride(0), AvgPool1d::new(2).padding(2)] {
            assert_eq!(pool.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
            assert!(pool.forward(&x).error().is_some(), "{pool:?}");
        }
        let none = AdaptiveAvgPool1d::new(0);
        assert_eq!(none.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
        assert_eq!(none.forward(&x).error().unwrap().kind(), ErrorKind::Argument);
    }

    #[test]
    fn other_shapes_are_errors() {
        let images = input(&[1, 2, 3, 4]);
        for (y, name) in [
            (MaxPool1d::new(2).forward(&images), "max_pool1d"),
            (AvgPool1d::new(2).forward(&images), "avg_pool1d"),
            (AdaptiveAvgPool1d::new(2).forward(&images), "adaptive_avg_pool1d"),
        ] {
            let message = y.error().unwrap().to_string();
            assert!(message.starts_with(&format!("{name}: the input must be [N, C, L]")), "{message}");
        }
        let message = MaxPool1d::new(3).forward(&input(&[1, 1, 2])).error().unwrap().to_string();
        assert!(message.contains("spans 3 elements, but the padded input has only 2"), "{message}");
    }
}

mod avg_pool2d {
    use super::super::*;
    use crate::{ErrorKind, Tape, Tensor};

    #[test]
    fn computes_the_formula() {
        let device = Device::cpu();
        let x: Vec<_> = (0..9u8).map(f32::from).collect();
        let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 1, 3, 3], &x).unwrap());
        let pool = AvgPool2d::new(2).padding(1);
        assert_eq!(pool.forward(&x).to_vec().unwrap(), [0.0, 0.75, 2.25, 6.0]);
        assert_eq!(pool.count_include_pad(false).forward(&x).to_vec().unwrap(), [0.0, 1.5, 4.5, 6.0]);
        assert_eq!(AvgPool2d::new((1, 3)).stride((2, 1)).forward(&x).to_vec().unwrap(), [1.0, 7.0]);
    }

    #[test]
    fn senseless_settings_are_errors() {
        let device = Device::cpu();
        let x = Tape::new(&device).input(&Tensor::zeros(&device, [1, 1, 8, 8]).unwrap());
        for pool in [AvgPool2d::new(0), AvgPool2d::new(2).stride(0), AvgPool2d::new(2).padding(2)] {
            assert_eq!(pool.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
            assert!(pool.forward(&x).error().is_some(), "{pool:?}");
        }
    }
}

mod max_pool2d {
    use super::super::*;
    use crate::{ErrorKind, Shape, Tape, Tensor};

    #[test]
    fn computes_the_formula() {
        let device = Device::cpu();
        let x: Vec<_> = (0..12u8).map(|i| -f32::from(i)).collect();
        let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 1, 3, 4], &x).unwrap());
        // Negative values: padding with zeros would win.
        let y = MaxPool2d::new(2).padding(1).forward(&x);
        assert_eq!(y.shape(), Shape::from([1, 1, 2, 3]));
        assert_eq!(y.to_vec().unwrap(), [0.0, -1.0, -3.0, -4.0, -5.0, -7.0]);
        let y = MaxPool2d::new((1, 2)).stride((2, 1)).dilation((1, 2)).forward(&x);
        assert_eq!(y.to_vec().unwrap(), [0.0, -1.0, -8.0, -9.0]);
    }

    #[test]
    fn senseless_settings_are_errors() {
        let device = Device::cpu();
        let x = Tape::new(&device).input(&Tensor::zeros(&device, [1, 1, 8, 8]).unwrap());
        let pool = MaxPool2d::new(2);
        for pool in [MaxPool2d::new(0), pool.stride(0), pool.dilation(0), pool.padding(2)] {
            assert_eq!(pool.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
            assert!(pool.forward(&x).error().is_some(), "{pool:?}");
        }
    }
}

mod pool3d {
    use super::super::*;
    use crate::{ErrorKind, Shape, Tape, Tensor};

    fn input(shape: &[usize]) -> Var {
        let device = Device::cpu();
        let x: Vec<_> = (0..shape.iter().product::<usize>()).map(|i| -(i as f32)).collect();
        Tape::new(&device).input(&Tensor::from_slice(&device, Shape::new(shape), &x).unwrap())
    }

    #[test]
    fn computes_the_formulas() {
        let x = input(&[1, 1, 3, 2, 2]);
        // Negative values: padding with zeros would win.
        let y = MaxPool3d::new(2).padding((1, 0, 0)).forward(&x);
        assert_eq!(y.shape(), Shape::from([1, 1, 2, 1, 1]));
        assert_eq!(y.to_vec().unwrap(), [0.0, -4.0]);
        let pool = AvgPool3d::new(2).padding((1, 0, 0));
        assert_eq!(pool.forward(&x).to_vec().unwrap(), [-0.75, -7.5]);
        assert_eq!(pool.count_include_pad(false).forward(&x).to_vec().unwrap(), [-1.5, -7.5]);
    }

    #[test]
    fn senseless_settings_are_errors() {
        let device = Device::cpu();
        let x = input(&[1, 1, 8, 8, 8]);
        let pool = MaxPool3d::new(2);
        for pool in [MaxPool3d::new(0), pool.stride(0), pool.dilation((1, 0, 1)), pool.padding((0, 2, 0))] {
            assert_eq!(pool.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
            assert!(pool.forward(&x).error().is_some(), "{pool:?}");
        }
        for pool in [AvgPool3d::new(0), AvgPool3d::new(2).stride(0), AvgPool3d::new(2).padding(2)] {
            assert_eq!(pool.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
            assert!(pool.forward(&x).error().is_some(), "{pool:?}");
        }
    }

    #[test]
    fn other_shapes_are_errors() {
        for (y, name) in [
            (MaxPool3d::new(2).forward(&input(&[1, 2, 3, 4])), "max_pool3d"),
            (AvgPool3d::new(2).forward(&input(&[1, 2, 3, 4])), "avg_pool3d"),
        ] {
            let message = y.error().unwrap().to_string();
            assert!(message.starts_with(&format!("{name}: the input must be [N, C, D, H, W]")), "{message}");
        }
        let message = MaxPool3d::new(3).forward(&input(&[1, 1, 2, 4, 4])).error().unwrap().to_string();
        assert!(message.contains("depth: a kernel of 3 spans 3 elements"), "{message}");
    }
}

mod options {
    use super::super::*;
    use crate::{ErrorKind, Tape, Tensor};

    #[test]
    fn senseless_settings_are_errors() {
        let device = Device::cpu();
        let error = AvgPool2d::new(2).divisor_override(0).init(&device, Seed::new(0)).unwrap_err();
        assert!(error.to_string().starts_with("avg_pool2d: divisor 0; it must be at least 1"), "{error}");
        let x = Tape::new(&device).input(&Tensor::zeros(&device, [1, 1, 8]).unwrap());
        let (y, line) = (AvgPool1d::new(2).divisor_override(0).forward(&x), line!());
        assert_eq!(y.error().unwrap().location().unwrap().line(), line);
        let ((y, index), line) = (MaxPool1d::new(9).forward_with_indices(&x), line!());
        for poisoned in [y, index] {
            let error = poisoned.error().unwrap();
            assert_eq!((error.kind(), error.location().unwrap().line()), (ErrorKind::Shape, line), "{error}");
        }
    }

    /// Windows of one size count in integers, others in floats.
    #[test]
    fn indices_that_an_f32_cannot_count_are_an_error() {
        let device = Device::cpu();
        let x = Tape::new(&device).input(&Tensor::zeros(&device, [1, 1, 1, 1, 1]).unwrap());
        let x = x.expand([1, 1, 2, 1 << 12, (1 << 11) + 1]);
        let (y, index) = MaxPool3d::new(2).forward_with_indices(&x);
        assert!(y.error().is_none() && index.error().is_none());
        let (_, index) = crate::nn::AdaptiveMaxPool3d::new((2, 2, 2)).forward_with_indices(&x);
        let message = index.error().unwrap().to_string();
        assert!(message.starts_with("adaptive_max_pool3d: an f32 cannot count 16785408 elements"), "{message}");
    }

    #[test]
    fn the_first_of_equal_elements_has_the_index() {
        let device = Device::cpu();
        let x = Tape::new(&device).input(&Tensor::full(&device, [1, 2, 2, 3, 4], 1.0).unwrap());
        let (_, index) = MaxPool3d::new(2).ceil_mode(true).forward_with_indices(&x);
        let expected = [0, 2, 8, 10, 0, 2, 8, 10];
        assert_eq!(index.to_tensor().unwrap().to_u32_vec().unwrap(), expected);
        let (_, index) = crate::nn::AdaptiveMaxPool3d::new((1, 2, 2)).forward_with_indices(&x);
        assert_eq!(index.to_tensor().unwrap().to_u32_vec().unwrap(), [0, 2, 4, 6, 0, 2, 4, 6]);
    }

    #[test]
    fn layers_are_shown_under_the_names_that_users_know() {
        assert!(format!("{:?}", MaxPool3d::new(2)).starts_with("MaxPool3d { kernel: [2, 2, 2], stride: [2, 2, 2]"));
        assert!(format!("{:?}", AvgPool1d::new(2)).starts_with("AvgPool1d { kernel: [2]"));
    }
}
