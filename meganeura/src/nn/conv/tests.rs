//! Tests of one layer in each number of dimensions.

mod conv1d {
    use super::super::*;
    use crate::{ErrorKind, Tape, Tensor};

    fn init(config: Conv1dConfig) -> Result<Conv1d> {
        config.init(&Device::cpu(), Seed::new(42))
    }

    #[test]
    fn computes_the_formula() {
        let mut conv = init(Conv1d::new(1, 2, 2).stride(2).padding(1)).unwrap();
        let device = conv.weight.value().device().clone();
        conv.weight.set(Tensor::from_slice(&device, [2, 1, 2], &[1.0, 10.0, -1.0, 0.0]).unwrap()).unwrap();
        conv.bias.as_mut().unwrap().set(Tensor::from_slice(&device, [2], &[0.5, 0.25]).unwrap()).unwrap();
        // [0, 1, 2, 3, 0] in windows [0, 1] and [2, 3].
        let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 1, 3], &[1.0, 2.0, 3.0]).unwrap());
        let y = conv.forward(&x);
        assert_eq!(y.shape(), Shape::from([1, 2, 2]));
        assert_eq!(y.to_vec().unwrap(), [10.5, 32.5, 0.25, -1.75]);
    }

    #[test]
    fn settings_reach_the_operation() {
        let conv = init(Conv1d::new(4, 6, 3).stride(2).padding(2).dilation(2).groups(2).bias(false)).unwrap();
        assert_eq!(conv.weight.shape(), Shape::from([6, 2, 3]));
        assert!(conv.bias.is_none());
        let x = Tensor::zeros(&Device::cpu(), [2, 4, 9]).unwrap();
        // (9 + 2·2 − 2·2 − 1)/2 + 1 = 5.
        assert_eq!(conv.forward(&Tape::new(x.device()).input(&x)).shape(), Shape::from([2, 6, 5]));
    }

    #[test]
    fn initial_values_lie_within_the_bound() {
        let conv = init(Conv1d::new(4, 8, 4)).unwrap();
        for param in [&conv.weight, conv.bias.as_ref().unwrap()] {
            assert!(param.value().to_vec().unwrap().iter().all(|x| x.abs() <= 0.25 && *x != 0.0));
        }
    }

    #[test]
    fn senseless_settings_are_errors() {
        let fails = |config, why: &str| {
            let error = init(config).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument);
            assert!(error.to_string().contains(why), "{error}");
        };
        fails(Conv1d::new(0, 1, 1), "channels");
        fails(Conv1d::new(1, 1, 0), "kernel 0");
        fails(Conv1d::new(1, 1, 1).stride(0), "stride 0");
        fails(Conv1d::new(1, 1, 1).dilation(0), "dilation 0");
        fails(Conv1d::new(4, 4, 1).groups(0), "groups");
        fails(Conv1d::new(4, 6, 1).groups(4), "4 groups must divide the 4 input and 6 output");
    }

    #[test]
    fn a_misfit_names_the_parameter_and_the_callers_line() {
        let conv = init(Conv1d::new(3, 4, 3)).unwrap();
        conv.weight.set_path("stem.weight");
        let tape = Tape::new(&Device::cpu());
        for (shape, why) in [
            (&[1, 2, 8][..], "the input has 2 channels, the weight expects 3"),
            (&[1, 3, 2], "spans 3 elements"),
            (&[3, 8], "must be [N, C, L], it is [3, 8]"),
        ] {
            let x = Tensor::zeros(&tape.device(), Shape::new(shape)).unwrap();
            let (y, line) = (conv.forward(&tape.input(&x)), line!());
            let error = y.error().unwrap();
            assert_eq!((error.kind(), error.location().unwrap().line()), (ErrorKind::Shape, line));
            let message = error.to_string();
            assert!(message.starts_with("conv1d: ") && message.contains(why), "{message}");
            assert!(message.contains("(parameter stem.weight)"), "{message}");
        }
    }

    #[test]
    fn the_first_error_is_the_one_reported() {
        let tape = Tape::new(&Device::cpu());
        let x = tape.input(&Tensor::zeros(&tape.device(), [1, 3, 8]).unwrap());
        let weight = x.slice(1, 2..5);
        let y = x.conv1d(&weight, ConvOptions::default());
        assert!(y.error().unwrap().to_string().starts_with("slice: "));
    }
}

mod conv2d {
    use super::super::*;
    use crate::{ErrorKind, Tape, Tensor};

    fn init(config: Conv2dConfig) -> Result<Conv2d> {
        config.init(&Device::cpu(), Seed::new(42))
    }

    fn apply(conv: &Conv2d, shape: [usize; 4]) -> Var {
        let (weight, numbers) = (conv.weight.value(), 0..Shape::from(shape).elements());
        let x: Vec<_> = numbers.map(|i| i as f32).collect();
        let x = Tensor::from_slice(weight.device(), shape, &x).unwrap();
        conv.forward(&Tape::new(weight.device()).input(&x))
    }

    #[test]
    fn computes_the_formula() {
        let mut conv = init(Conv2d::new(1, 2, (2, 1)).stride((1, 2)).padding((0, 1))).unwrap();
        let device = conv.weight.value().device().clone();
        conv.weight.set(Tensor::from_slice(&device, [2, 1, 2, 1], &[1.0, 10.0, -1.0, 0.0]).unwrap()).unwrap();
        conv.bias.as_mut().unwrap().set(Tensor::from_slice(&device, [2], &[0.5, 0.25]).unwrap()).unwrap();
        // x = [[0, 1, 2], [3, 4, 5]], padded to [[0, 0, 1, 2, 0], [0, 3, 4, 5, 0]]; columns 0, 2 and 4 are read.
        let y = apply(&conv, [1, 1, 2, 3]);
        assert_eq!(y.shape(), Shape::from([1, 2, 1, 3]));
        assert_eq!(y.to_vec().unwrap(), [0.5, 41.5, 0.5, 0.25, -0.75, 0.25]);
    }

    #[test]
    fn settings_reach_the_operation() {
        let conv = init(Conv2d::new(4, 6, 3).stride(2).padding([2, 1]).dilation(2).groups(2).bias(false)).unwrap();
        assert_eq!(conv.weight.shape(), Shape::from([6, 2, 3, 3]));
        assert!(conv.bias.is_none());
        // (9 + 2·2 − 2·2 − 1)/2 + 1 = 5 and (8 + 2·1 − 2·2 − 1)/2 + 1 = 3.
        assert_eq!(apply(&conv, [2, 4, 9, 8]).shape(), Shape::from([2, 6, 5, 3]));
    }

    #[test]
    fn initial_values_lie_within_the_bound() {
        let conv = init(Conv2d::new(4, 8, 2)).unwrap();
        for param in [&conv.weight, conv.bias.as_ref().unwrap()] {
            assert!(param.value().to_vec().unwrap().iter().all(|x| x.abs() <= 0.25 && *x != 0.0));
        }
    }

    #[test]
    fn senseless_settings_are_errors() {
        let fails = |config| {
            let error = init(config).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument);
            error.to_string()
        };
        assert!(fails(Conv2d::new(0, 1, 1)).contains("channels"));
        assert!(fails(Conv2d::new(1, 1, (3, 0))).contains("kernel [3, 0]"));
        assert!(fails(Conv2d::new(1, 1, 1).stride(0)).contains("stride"));
        assert!(fails(Conv2d::new(1, 1, 1).dilation(0)).contains("dilation"));
        assert!(fails(Conv2d::new(4, 4, 1).groups(0)).contains("groups"));
        assert!(fails(Conv2d::new(4, 6, 1).groups(4)).contains("4 groups must divide the 4 input and 6 output"));
    }

    #[test]
    fn a_misfit_names_the_parameter_and_the_callers_line() {
        let conv = init(Conv2d::new(3, 4, 3)).unwrap();
        conv.weight.set_path("stem.weight");
        let weight = conv.weight.value();
        for shape in [[1, 2, 8, 8], [1, 3, 2, 8]] {
            let x = Tensor::zeros(weight.device(), shape).unwrap();
            let (y, line) = (conv.forward(&Tape::new(weight.device()).input(&x)), line!());
            let error = y.error().unwrap();
            assert_eq!(error.kind(), ErrorKind::Shape);
            assert!(error.to_string().contains("(parameter stem.weight)"), "{error}");
            assert_eq!(error.location().unwrap().line(), line, "{error}");
        }
    }
}

mod conv3d {
    use super::super::*;
    use crate::{ErrorKind, Tape, Tensor};

    fn init(config: Conv3dConfig) -> Result<Conv3d> {
        config.init(&Device::cpu(), Seed::new(42))
    }

    fn input(shape: &[usize]) -> Var {
        let device = Device::cpu();
        let x: Vec<_> = (0..shape.iter().product::<usize>()).map(|i| i as f32).collect();
        Tape::new(&device).input(&Tensor::from_slice(&device, Shape::new(shape), &x).unwrap())
    }

    #[test]
    fn computes_the_formula() {
        let mut conv = init(Conv3d::new(1, 1, (2, 1, 1)).stride((2, 1, 1)).padding((1, 0, 0))).unwrap();
        let device = conv.weight.value().device().clone();
        conv.weight.set(Tensor::from_slice(&device, [1, 1, 2, 1, 1], &[1.0, 10.0]).unwrap()).unwrap();
        conv.bias.as_mut().unwrap().set(Tensor::from_slice(&device, [1], &[0.5]).unwrap()).unwrap();
        // Slices [0, 1], [2, 3], [4, 5], padded with zero slices, in windows of two: (zeros, first) and (second,
        // third).
        let y = conv.forward(&input(&[1, 1, 3, 1, 2]));
        assert_eq!(y.shape(), Shape::from([1, 1, 2, 1, 2]));
        assert_eq!(y.to_vec().unwrap(), [0.5, 10.5, 42.5, 53.5]);
    }

    #[test]
    fn settings_reach_the_operation() {
        let conv = Conv3d::new(4, 6, 3).stride((2, 1, 3)).padding([2, 1, 0]).dilation((2, 1, 1)).groups(2).bias(false);
        let conv = init(conv).unwrap();
        assert_eq!(conv.weight.shape(), Shape::from([6, 2, 3, 3, 3]));
        assert!(conv.bias.is_none());
        // (9 + 4 − 4 − 1)/2 + 1 = 5, 4 + 2 − 2 = 4, (8 − 2 − 1)/3 + 1 = 2.
        assert_eq!(conv.forward(&input(&[2, 4, 9, 4, 8])).shape(), Shape::from([2, 6, 5, 4, 2]));
    }

    #[test]
    fn initial_values_lie_within_the_bound() {
        let conv = init(Conv3d::new(4, 8, (1, 2, 2))).unwrap();
        for param in [&conv.weight, conv.bias.as_ref().unwrap()] {
            assert!(param.value().to_vec().unwrap().iter().all(|x| x.abs() <= 0.25 && *x != 0.0));
        }
    }

    #[test]
    fn senseless_settings_are_errors() {
        let fails = |config, why: &str| {
            let error = init(config).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument);
            assert!(error.to_string().contains(why), "{error}");
        };
        fails(Conv3d::new(0, 1, 1), "channels");
        fails(Conv3d::new(1, 1, (3, 0, 1)), "kernel [3, 0, 1]");
        fails(Conv3d::new(1, 1, 1).stride(0), "stride");
        fails(Conv3d::new(1, 1, 1).dilation((1, 1, 0)), "dilation");
        fails(Conv3d::new(4, 6, 1).groups(4), "4 groups must divide the 4 input and 6 output");
    }

    #[test]
    fn a_misfit_names_the_parameter_and_the_callers_line() {
        let conv = init(Conv3d::new(3, 4, 3)).unwrap();
        conv.weight.set_path("stem.weight");
        for (shape, why) in [
            (&[1, 2, 8, 8, 8][..], "the input has 2 channels, the weight expects 3"),
            (&[1, 3, 2, 8, 8], "depth: a kernel of 3 spans 3 elements"),
            (&[1, 3, 8, 8, 2], "width: a kernel"),
            (&[1, 3, 8, 8], "must be [N, C, D, H, W], it is [1, 3, 8, 8]"),
        ] {
            let (y, line) = (conv.forward(&input(shape)), line!());
            let error = y.error().unwrap();
            assert_eq!((error.kind(), error.location().unwrap().line()), (ErrorKind::Shape, line));
            let message = error.to_string();
            assert!(message.starts_with("conv3d: ") && message.contains(why), "{message}");
            assert!(message.contains("(parameter stem.weight)"), "{message}");
        }
    }
}

mod options {
    use super::super::*;
    use crate::ops::Padding;
    use crate::{ErrorKind, Tape, Tensor};

    #[test]
    fn padding_that_keeps_the_extents_needs_a_stride_of_1() {
        let device = Device::cpu();
        let error = Conv2d::new(1, 1, 3).padding_same().stride((1, 2)).init(&device, Seed::new(1)).unwrap_err();
        let why = "conv2d: padding that keeps the extents needs a stride of 1, not [1, 2]";
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert!(error.to_string().starts_with(why), "{error}");
        let mut conv = Conv3d::new(1, 1, (2, 3, 4)).padding_same().init(&device, Seed::new(1)).unwrap();
        let x = Tape::new(&device).input(&Tensor::zeros(&device, [1, 1, 3, 2, 5]).unwrap());
        assert_eq!(conv.forward(&x).shape(), x.shape());
        conv.options.stride = [2, 1, 1];
        let (y, line) = (conv.forward(&x), line!());
        let error = y.error().unwrap();
        assert_eq!((error.kind(), error.location().unwrap().line()), (ErrorKind::Argument, line), "{error}");
        // `padding` takes it back.
        let conv = Conv1d::new(1, 1, 3).padding_same().padding(0).stride(2).init(&device, Seed::new(1)).unwrap();
        assert!(!conv.padding_same && conv.options.padding == [0]);
    }

    #[test]
    fn a_mode_that_the_input_is_too_small_for_is_an_error_on_the_callers_line() {
        let device = Device::cpu();
        let conv = Conv1d::new(1, 1, 3).padding(3).padding_mode(Padding::Reflect).init(&device, Seed::new(1)).unwrap();
        let x = Tape::new(&device).input(&Tensor::zeros(&device, [1, 1, 3]).unwrap());
        let (y, line) = (conv.forward(&x), line!());
        let error = y.error().unwrap();
        assert_eq!((error.kind(), error.location().unwrap().line()), (ErrorKind::Argument, line), "{error}");
        // Of another number of axes, the convolution reports it.
        let y = conv.forward(&x.reshape([1, 3]));
        assert!(y.error().unwrap().to_string().starts_with("conv1d: the input must be [N, C, L]"));
    }

    #[test]
    fn layers_are_shown_under_the_names_that_users_know() {
        let conv = Conv1d::new(1, 2, 3).init(&Device::cpu(), Seed::new(1)).unwrap();
        let shown = format!("{conv:?}");
        assert!(
            shown.starts_with("Conv1d { weight: ") && shown.contains("options: Conv1dOptions { stride: [1]"),
            "{shown}"
        );
        assert!(conv.to_string().contains("Conv1d"), "{conv}");
        assert!(format!("{:?}", Conv3d::new(1, 2, 3)).starts_with("Conv3dConfig { inputs: 1"));
    }
}
