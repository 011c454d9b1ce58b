//! The choice of tokens, and the texts that a model generates.

use libtest_mimic::Trial;
use meganeura::prelude::*;
use meganeura::{ErrorKind, Result};
use meganeura_models::{Gpt2, Sampling};

use crate::adapter::gpu_trial;
use crate::numbers::{fill, picture, tokens};
use crate::{Outcome, cases, floats, relative_error};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(Trial::test("text::native::as_transformers_writes", || greedy(&Device::cpu())));
    trials.push(gpu_trial("text::gpu::as_transformers_writes", |device| greedy(&device.for_testing(0))));
    trials.push(Trial::test("text::as_transformers_samples", probabilities));
    trials.push(Trial::test("text::draws_follow_the_probabilities_and_the_seed", draws));
    trials.push(Trial::test("text::misuse", misuse));
}

fn net(device: &Device) -> Result<Gpt2> {
    let mut net = cases::gpt2(device)?;
    fill(&mut net)?;
    Ok(net)
}

/// Eleven tokens behind a prompt, through the cache, up to the end of the context.
fn greedy(device: &Device) -> Outcome {
    let prompt = tokens(&Device::cpu(), "prompt", [1, 5], 29)?.to_u32_vec()?;
    let expected: Vec<_> = floats("text")?.into_iter().map(|token| token as u32).collect();
    assert_eq!(net(device)?.generate(&prompt, 11, &Sampling::greedy())?, expected);
    Ok(())
}

fn probabilities() -> Outcome {
    let scores = picture(&Device::cpu(), "scores", [1, 20])?.to_vec()?.into_iter().map(|x| 4.0 * x).collect::<Vec<_>>();
    let sampling = Sampling { temperature: 0.7, top_k: Some(12), top_p: 0.8, seed: 0 };
    let (found, expected) = (sampling.probabilities(&scores)?, floats("shares")?);
    assert_eq!(
        found.iter().map(|&x| x > 0.0).collect::<Vec<_>>(),
        expected.iter().map(|&x| x > 0.0).collect::<Vec<_>>()
    );
    assert!(relative_error(&found, &expected) < 1e-12, "{found:?} is not {expected:?}");
    assert!((2..12).contains(&found.iter().filter(|&&x| x > 0.0).count()), "both rules leave something out: {found:?}");
    Ok(())
}

fn draws() -> Outcome {
    let net = net(&Device::cpu())?;
    let text = |seed, temperature| net.generate(&[3], 15, &Sampling { seed, temperature, ..Sampling::default() });
    assert_eq!(text(1, 1.0)?, text(1, 1.0)?);
    assert_ne!(text(1, 1.0)?, text(2, 1.0)?);
    // Nearly greedy.
    assert_eq!(text(1, 1e-6)?, net.generate(&[3], 15, &Sampling::greedy())?);
    // The first token of many texts, against its probabilities.
    let tape = Tape::inference(&Device::cpu());
    let scores = net.forward(&tape.input(&Tensor::indices(&Device::cpu(), [1, 1], &[3])?)).to_vec()?;
    let shares = Sampling::default().probabilities(&scores)?;
    let mut counts = vec![0u32; 29];
    for seed in 0..400 {
        counts[text_of_one(&net, seed)? as usize] += 1;
    }
    for (count, share) in counts.into_iter().zip(shares) {
        // Five standard errors of a count.
        let error = (400.0 * share * (1.0 - share)).sqrt();
        assert!((f64::from(count) - 400.0 * share).abs() < 5.0 * error + 1.0, "{count} of 400, expected {share}");
    }
    Ok(())
}

fn text_of_one(net: &Gpt2, seed: u64) -> Result<u32> {
    Ok(net.generate(&[3], 1, &Sampling { seed, ..Sampling::default() })?[0])
}

fn misuse() -> Outcome {
    let net = net(&Device::cpu())?;
    let greedy = Sampling::greedy();
    assert!(net.generate(&[1, 2], 0, &greedy)?.is_empty());
    for (prompt, count) in [(&[][..], 3), (&[1; 17], 1), (&[1, 2], 16), (&[29], 1)] {
        let error = net.generate(prompt, count, &greedy).expect_err("not a text of this model");
        assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
    }
    let scores = [1.0, 2.0];
    for wrong in [
        Sampling { temperature: -1.0, ..Sampling::default() },
        Sampling { temperature: f64::NAN, ..Sampling::default() },
        Sampling { top_k: Some(0), ..Sampling::default() },
        Sampling { top_p: 0.0, ..Sampling::default() },
        Sampling { top_p: f64::NAN, ..Sampling::default() },
    ] {
        assert_eq!(wrong.probabilities(&scores).expect_err("no setting").kind(), ErrorKind::Argument);
    }
    for scores in [&[][..], &[f32::NAN, 1.0], &[f32::NEG_INFINITY; 2]] {
        assert_eq!(greedy.probabilities(scores).expect_err("no scores").kind(), ErrorKind::NotFinite);
    }
    let x = Tape::inference(&Device::cpu()).input(&Tensor::indices(&Device::cpu(), [1, 17], &[1; 17])?);
    let (y, line) = (net.forward(&x), line!());
    let error = y.error().expect("longer than the context");
    assert_eq!(error.location().map(std::panic::Location::line), Some(line), "{error}");
    assert!(error.to_string().contains("a text of 17 tokens, the longest has 16"), "{error}");
    Ok(())
}
