//! Flows that fit, flows that do not, and their error messages.

use super::*;

fn channels(takes: usize, gives: usize) -> Flow {
    Flow::unknown().takes_channels(takes).gives_channels(gives)
}

fn misfit(chain: FlowChain) -> Option<String> {
    chain.finish().misfit.map(|error| error.message().to_owned())
}

#[test]
fn neighbours_are_compared_through_layers_that_keep_extents() {
    let chain = || FlowChain::new().then("a", &channels(3, 32)).then("b", &Flow::kept());
    assert_eq!(misfit(chain().then("c", &channels(32, 8))), None);
    let message = misfit(chain().then("c", &channels(64, 8)).then("d", &channels(1, 1)));
    assert_eq!(message.as_deref(), Some("`a` gives 32 channels, `c` takes 64"), "the first one counts");
    assert_eq!(misfit(chain().unknown().then("c", &channels(64, 8))), None);
    let norm = Flow::kept().takes_channels(8);
    let message = misfit(FlowChain::new().then("norm", &norm).then("conv", &channels(4, 4)));
    assert_eq!(message.as_deref(), Some("`norm` gives 8 channels, `conv` takes 4"));
}

#[test]
fn axes_are_not_mixed_up() {
    let linear = Flow::unknown().takes_features(64).gives_features(10);
    assert_eq!(misfit(FlowChain::new().then("conv", &channels(3, 32)).then("linear", &linear)), None);
    let pooled = FlowChain::new().then("linear", &linear).then("pool", &Flow::kept_channels());
    assert_eq!(misfit(pooled.then("other", &linear)), None);
    let message = misfit(FlowChain::new().then("a", &linear).then("b", &linear));
    assert_eq!(message.as_deref(), Some("`a` gives 10 features, `b` takes 64"));
}

#[test]
fn chains_in_chains_name_the_whole_path() {
    let block = FlowChain::new().then("0", &channels(3, 32)).then("1", &Flow::kept()).finish();
    let message = misfit(FlowChain::new().then("stem", &block).then("head", &channels(16, 1)));
    assert_eq!(message.as_deref(), Some("`stem.0` gives 32 channels, `head` takes 16"));
    let message = misfit(FlowChain::new().then("tail", &channels(1, 5)).then("stem", &block));
    assert_eq!(message.as_deref(), Some("`tail` gives 5 channels, `stem.0` takes 3"));
    let broken = FlowChain::new().then("a", &channels(1, 2)).then("b", &channels(3, 4)).finish();
    let message = misfit(FlowChain::new().then("blocks", &broken));
    assert_eq!(message.as_deref(), Some("`blocks`: `a` gives 2 channels, `b` takes 3"));
}

#[test]
fn summands_must_fit() {
    let body = || FlowChain::new().then("conv", &channels(16, 32));
    let message = misfit(body().beside(None)).unwrap();
    assert!(message.starts_with("`conv` gives 32 channels, and the input that is added to it has 16"), "{message}");
    assert_eq!(misfit(body().beside(Some(("shortcut", &channels(16, 32))))), None);
    let message = misfit(body().beside(Some(("shortcut", &channels(16, 8))))).unwrap();
    assert_eq!(message, "`conv` gives 32 channels, `shortcut` beside it 8");
    let message = misfit(body().beside(Some(("shortcut", &channels(4, 32))))).unwrap();
    assert_eq!(message, "`conv` takes 16 channels, `shortcut` beside it 4");
    // If one side is known, so is the sum.
    let sum = FlowChain::new().unknown().beside(Some(("shortcut", &channels(4, 8)))).finish();
    let message = misfit(FlowChain::new().then("sum", &sum).then("next", &channels(9, 1)));
    assert_eq!(message.as_deref(), Some("`sum.shortcut` gives 8 channels, `next` takes 9"));
}

#[test]
fn on_two_axes_channels_are_features() {
    let doubled = Flow::kept().takes_channels(16).gives_channels(32);
    let linear = |takes, gives| Flow::unknown().takes_features(takes).gives_features(gives);
    let chain = || FlowChain::new().then("first", &linear(8, 16));
    assert_eq!(misfit(chain().then("doubled", &doubled).then("last", &linear(32, 4))), None);
    let doubled = Flow::kept().takes_features(16).gives_features(32);
    let conv = FlowChain::new().then("conv", &channels(3, 16)).then("doubled", &doubled);
    assert_eq!(misfit(conv.then("next", &channels(32, 4))), None);
    // An extent that is given stays known.
    let both = Flow::kept().gives_channels(8).gives_features(4);
    let message = misfit(FlowChain::new().then("both", &both).then("next", &channels(9, 1)));
    assert_eq!(message.as_deref(), Some("`both` gives 8 channels, `next` takes 9"));
}

#[test]
fn global_pooling_turns_channels_into_features() {
    let (pool, linear) = (Flow::channels_as_features(), Flow::unknown().takes_features(16).gives_features(10));
    let conv = |gives| FlowChain::new().then("conv", &channels(3, gives));
    assert_eq!(misfit(conv(16).then("pool", &pool).then("head", &linear)), None);
    let message = misfit(conv(32).then("pool", &pool).then("relu", &Flow::kept()).then("head", &linear));
    assert_eq!(message.as_deref(), Some("`conv` gives 32 features, `head` takes 16"));
    // The same if the pooling is in a separate chain, where the channels are unknown.
    let tail = FlowChain::new().then("0", &Flow::kept()).then("1", &pool).finish();
    let message = misfit(conv(32).then("tail", &tail).then("head", &linear));
    assert_eq!(message.as_deref(), Some("`conv` gives 32 features, `head` takes 16"));
    assert_eq!(misfit(FlowChain::new().then("tail", &tail).then("head", &linear)), None);
}

#[test]
fn a_shortcut_that_passes_the_input_on_is_named() {
    let body = || FlowChain::new().then("conv", &channels(16, 32));
    let message = misfit(body().beside(Some(("shortcut", &Flow::kept())))).unwrap();
    let expected = "`conv` gives 32 channels, `shortcut` beside it passes on the input's 16, as `conv` takes; ";
    assert!(message.starts_with(expected) && message.ends_with("put a layer into `shortcut`"), "{message}");
    let norm = Flow::kept().takes_channels(16);
    let message = misfit(body().beside(Some(("shortcut", &norm)))).unwrap();
    assert_eq!(message, "`conv` gives 32 channels, `shortcut` beside it 16");
}
