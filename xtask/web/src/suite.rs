//! Runs the cases, each in a separate browser.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;

use crate::browser::Browser;
use crate::cases::CASES;
use crate::{Done, root, server};

#[derive(Args, Debug)]
pub struct Options {
    /// Run only the tests with this in their name
    filter: Option<String>,
}

/// A test: the browser's options, and the actions in it.
pub struct Case {
    pub name: &'static str,
    pub flags: &'static [&'static str],
    /// Code at the beginning of the worker.
    pub worker_prefix: &'static str,
    /// A text that every warning and error of the console must contain; `None` if there must be none.
    pub complaint: Option<&'static str>,
    pub run: fn(&Page) -> Done,
}

/// The page in a browser.
pub struct Page {
    pub browser: Browser,
    address: String,
    pictures: PathBuf,
}

impl Page {
    /// Opens the page with a query, and waits until it is ready.
    pub fn open(&self, query: &str) -> Done {
        self.browser.go(&format!("{}?{query}", self.address))?;
        self.browser.wait("!document.getElementById('start').disabled")
    }

    /// A picture of the whole page, in `target/page-pictures`.
    pub fn picture(&self, name: &str) -> Done {
        self.browser.screenshot(&self.pictures.join(name))
    }
}

/// Runs all cases, also after a failure.
pub fn run(folder: &Path, options: &Options) -> Done {
    let pictures = root().join("target").join("page-pictures");
    fs::create_dir_all(&pictures).map_err(|error| format!("{}: {error}", pictures.display()))?;
    let mut failed = Vec::new();
    let wanted = |case: &&Case| options.filter.as_ref().is_none_or(|part| case.name.contains(part));
    let cases: Vec<_> = CASES.iter().filter(wanted).collect();
    if cases.is_empty() {
        return Err("no test has this in its name".to_owned());
    }
    println!("\nrunning {} tests in Chromium", cases.len());
    for case in &cases {
        let start = Instant::now();
        let done = catch_unwind(AssertUnwindSafe(|| run_case(case, folder, &pictures)));
        let done = done.unwrap_or_else(|_| Err("panicked, see above".to_owned()));
        let seconds = start.elapsed().as_secs_f64();
        match done {
            Ok(()) => println!("test {} ... ok ({seconds:.1} s)", case.name),
            Err(message) => {
                println!("test {} ... FAILED ({seconds:.1} s)\n{message}", case.name);
                failed.push(case.name);
            }
        }
    }
    println!("\n{} passed, {} failed; pictures in {}", cases.len() - failed.len(), failed.len(), pictures.display());
    if failed.is_empty() { Ok(()) } else { Err(format!("tests of the page failed: {}", failed.join(", "))) }
}

fn run_case(case: &Case, folder: &Path, pictures: &Path) -> Done {
    let (server, port) = server::start(folder, case.worker_prefix)?;
    let browser = Browser::open(case.flags)?;
    let page = Page { browser, address: format!("http://127.0.0.1:{port}/"), pictures: pictures.to_owned() };
    let done = (case.run)(&page);
    let complaints = page.browser.complaints();
    server.unblock();
    if let Err(message) = done {
        return Err(format!("{message}\nthe console says: {complaints:#?}"));
    }
    let unexpected = |said: &&String| !case.complaint.is_some_and(|part| said.contains(part));
    match complaints?.iter().find(unexpected) {
        Some(said) => Err(format!("the console says: {said}")),
        None => Ok(()),
    }
}
