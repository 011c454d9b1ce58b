//! Tests of one layer in each number of dimensions.

mod conv_transpose1d {
    use super::super::*;
    use crate::{ErrorKind, Tape, Tensor};

    fn init(config: ConvTranspose1dConfig) -> Result<ConvTranspose1d> {
        config.init(&Device::cpu(), Seed::new(42))
    }

    #[test]
    fn computes_the_formula() {
        let mut layer = init(ConvTranspose1d::new(2, 1, 2).stride(3).padding(1)).unwrap();
        let device = layer.weight.value().device().clone();
        layer.weight.set(Tensor::from_slice(&device, [2, 1, 2], &[1.0, 10.0, 0.0, 100.0]).unwrap()).unwrap();
        layer.bias.as_mut().unwrap().set(Tensor::from_slice(&device, [1], &[0.5]).unwrap()).unwrap();
        let x = Tensor::from_slice(&device, [1, 2, 2], &[1.0, 2.0, 3.0, 4.0]).unwrap();
        // Channels [1, 2] and [3, 4]: [1, 10 + 300, 0, 2, 20 + 400] without its first and last element.
        let y = layer.forward(&Tape::new(&device).input(&x));
        assert_eq!(y.shape(), Shape::from([1, 1, 3]));
        assert_eq!(y.to_vec().unwrap(), [310.5, 0.5, 2.5]);
    }

    #[test]
    fn settings_reach_the_operation() {
        let config = ConvTranspose1d::new(4, 6, 3).stride(2).padding(2).output_padding(1).dilation(2);
        let layer = init(config.groups(2).bias(false)).unwrap();
        assert_eq!(layer.weight.shape(), Shape::from([4, 3, 3]));
        assert!(layer.bias.is_none());
        let x = Tensor::zeros(&Device::cpu(), [2, 4, 9]).unwrap();
        // 8·2 − 4 + 4 + 1 + 1 = 18.
        assert_eq!(layer.forward(&Tape::new(x.device()).input(&x)).shape(), Shape::from([2, 6, 18]));
    }

    #[test]
    fn senseless_settings_are_errors() {
        let fails = |config, why: &str| {
            let error = init(config).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument);
            assert!(error.to_string().contains(why), "{error}");
        };
        let new = || ConvTranspose1d::new(4, 6, 3);
        fails(ConvTranspose1d::new(0, 1, 1), "channels");
        fails(ConvTranspose1d::new(1, 1, 0), "kernel 0");
        fails(new().stride(0), "stride 0");
        fails(new().dilation(0), "dilation 0");
        fails(new().groups(4), "4 groups must divide the 4 input and 6 output");
        fails(new().stride(2).output_padding(2), "output padding [2] must be less than the stride [2]");
        assert!(init(new().dilation(3).output_padding(2)).is_ok());
    }

    #[test]
    fn a_misfit_names_the_parameter_and_the_callers_line() {
        let layer = init(ConvTranspose1d::new(3, 4, 3).padding(2)).unwrap();
        layer.weight.set_path("up.weight");
        let tape = Tape::new(&Device::cpu());
        for (shape, why) in [
            (&[1, 2, 8][..], "the input has 2 channels, the weight expects 3"),
            (&[1, 3, 2], "the padding cuts off 4 elements"),
            (&[1, 3, 1, 8], "must be [N, C, L], it is [1, 3, 1, 8]"),
        ] {
            let x = Tensor::zeros(&tape.device(), Shape::new(shape)).unwrap();
            let (y, line) = (layer.forward(&tape.input(&x)), line!());
            let error = y.error().unwrap();
            assert_eq!((error.kind(), error.location().unwrap().line()), (ErrorKind::Shape, line));
            let message = error.to_string();
            assert!(message.starts_with("conv_transpose1d: ") && message.contains(why), "{message}");
            assert!(message.contains("(parameter up.weight)"), "{message}");
        }
    }
}

mod conv_transpose2d {
    use super::super::*;
    use crate::{ErrorKind, Tape, Tensor};

    fn init(config: ConvTranspose2dConfig) -> Result<ConvTranspose2d> {
        config.init(&Device::cpu(), Seed::new(42))
    }

    fn apply(layer: &ConvTranspose2d, shape: [usize; 4]) -> Var {
        let (weight, numbers) = (layer.weight.value(), 1..=Shape::from(shape).elements());
        let x: Vec<_> = numbers.map(|i| i as f32).collect();
        let x = Tensor::from_slice(weight.device(), shape, &x).unwrap();
        layer.forward(&Tape::new(weight.device()).input(&x))
    }

    #[test]
    fn computes_the_formula() {
        let mut layer = init(ConvTranspose2d::new(2, 1, (1, 2)).stride((1, 3)).padding((0, 1))).unwrap();
        let device = layer.weight.value().device().clone();
        layer.weight.set(Tensor::from_slice(&device, [2, 1, 1, 2], &[1.0, 10.0, 0.0, 100.0]).unwrap()).unwrap();
        layer.bias.as_mut().unwrap().set(Tensor::from_slice(&device, [1], &[0.5]).unwrap()).unwrap();
        // Channels [1, 2] and [3, 4]: [1, 10 + 300, 0, 2, 20 + 400] without its first and last column.
        let y = apply(&layer, [1, 2, 1, 2]);
        assert_eq!(y.shape(), Shape::from([1, 1, 1, 3]));
        assert_eq!(y.to_vec().unwrap(), [310.5, 0.5, 2.5]);
    }

    #[test]
    fn settings_reach_the_operation() {
        let config = ConvTranspose2d::new(4, 6, 3).stride(2).padding([2, 1]).output_padding((1, 0)).dilation((1, 2));
        let layer = init(config.groups(2).bias(false)).unwrap();
        assert_eq!(layer.weight.shape(), Shape::from([4, 3, 3, 3]));
        assert!(layer.bias.is_none());
        // 8·2 − 4 + 2 + 1 + 1 = 16 and 7·2 − 2 + 4 + 1 = 17.
        assert_eq!(apply(&layer, [2, 4, 9, 8]).shape(), Shape::from([2, 6, 16, 17]));
    }

    #[test]
    fn initial_values_lie_within_the_bound() {
        let layer = init(ConvTranspose2d::new(3, 8, 2).groups(1)).unwrap();
        for param in [&layer.weight, layer.bias.as_ref().unwrap()] {
            // 1/√(8·2·2)
            assert!(param.value().to_vec().unwrap().iter().all(|x| x.abs() <= 0.176_777 && *x != 0.0));
        }
    }

    #[test]
    fn senseless_settings_are_errors() {
        let fails = |config| {
            let error = init(config).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument);
            error.to_string()
        };
        let new = || ConvTranspose2d::new(4, 6, 3);
        assert!(fails(ConvTranspose2d::new(0, 1, 1)).contains("channels"));
        assert!(fails(ConvTranspose2d::new(1, 1, (3, 0))).contains("kernel [3, 0]"));
        assert!(fails(new().stride(0)).contains("stride"));
        assert!(fails(new().dilation(0)).contains("dilation"));
        assert!(fails(new().groups(4)).contains("4 groups must divide the 4 input and 6 output"));
        assert!(fails(new().output_padding(1)).contains("output padding [1, 1] must be less than the stride [1, 1]"));
        assert!(fails(new().stride(2).output_padding((0, 2))).contains("output padding [0, 2]"));
        assert!(init(new().dilation(3).output_padding(2)).is_ok());
    }

    #[test]
    fn a_misfit_names_the_parameter_and_the_callers_line() {
        let layer = init(ConvTranspose2d::new(3, 4, 3).padding(2)).unwrap();
        layer.weight.set_path("up.weight");
        let weight = layer.weight.value();
        for shape in [[1, 2, 8, 8], [1, 3, 2, 8]] {
            let x = Tensor::zeros(weight.device(), shape).unwrap();
            let (y, line) = (layer.forward(&Tape::new(weight.device()).input(&x)), line!());
            let error = y.error().unwrap();
            assert_eq!(error.kind(), ErrorKind::Shape);
            assert!(error.to_string().starts_with("conv_transpose2d: "), "{error}");
            assert!(error.to_string().contains("(parameter up.weight)"), "{error}");
            assert_eq!(error.location().unwrap().line(), line, "{error}");
        }
    }
}
