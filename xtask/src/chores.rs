//! CI's checks besides the tests.

use crate::process::{self, cargo};
use crate::{Done, deny, mpi, msrv, publish, surface, test, tidy};

/// The checks, cheapest first.
pub const LINTS: [fn() -> Done; 8] =
    [fmt, tidy::run, clippy, doc, surface::check, msrv::run, publish::check, deny::is_checked];

/// Features of the framework that are checked separately; the tests enable `testing` and `gpu`.
const ALONE: [&str; 5] = ["", "gzip", "images", "onnx", "testing"];

/// Runs all chores even after a failure, so that one round shows everything. Returns all failures.
pub fn run(chores: &[fn() -> Done]) -> Done {
    let failures: Vec<_> = chores.iter().filter_map(|chore| chore().err()).collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\nxtask: ")) }
}

fn fmt() -> Done {
    process::run(cargo().args(["fmt", "--all", "--check"]))
}

fn clippy() -> Done {
    if test::is_ci() {
        mpi::ensure();
    }
    let alone = mpi::is_there().then_some("mpi");
    let all = ["clippy", "--workspace", "--all-targets", "--features", test::features(alone.is_some())];
    process::run(cargo().args(all).args(["--", "-D", "warnings"]))?;
    // The workspace enables every feature; the framework must also build without any, and with each of them alone.
    ALONE.into_iter().chain(alone).try_for_each(|features| {
        let only = ["clippy", "-p", "meganeura", "--no-default-features", "--features", features];
        process::run(cargo().args(only).args(["--", "-D", "warnings"]))
    })
}

fn doc() -> Done {
    process::run(cargo().args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_does_not_hide_the_next() {
        let chores: [fn() -> Done; 3] = [|| Err("first".into()), || Ok(()), || Err("second".into())];
        assert_eq!(run(&chores), Err("first\nxtask: second".into()));
        assert_eq!(run(&chores[1..2]), Ok(()));
    }
}
