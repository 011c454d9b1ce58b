//! The one error type: a kind to match on, and a message that explains the mistake.

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, LazyLock};

use crate::TensorType;

/// The kind of an error, for code that handles it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Operands whose shapes or element types do not fit an operation.
    Shape,
    /// A value outside the allowed range of an operation or a setting, such as a label past the classes or a stride of
    /// 0.
    Argument,
    /// A parameter was updated after a tape recorded it, so the tape is out of date.
    StaleTape,
    /// A parameter that should be trained got no gradient.
    NoGradient,
    /// An operation has no gradient rule where one is needed.
    NotDifferentiable,
    /// NaN or infinity where the caller asked for an error.
    NotFinite,
    /// There is no device of the wanted kind, or operands are on different devices.
    Device,
    /// The device or the host has no room for a tensor or a file's content, or cannot count its elements.
    OutOfMemory,
    /// The device was lost, for example to a driver reset or an unplugged adapter.
    DeviceLost,
    /// Another process of the same [world](crate::world) left while this one waited for it.
    PeerLost,
    /// A file could not be read or written.
    Io,
    /// A file was read but is not valid: truncated, malicious, or of another model.
    Checkpoint,
    /// A data file was read but is not valid: truncated, too long, of another format, of another size than the others,
    /// or beyond a limit on reading.
    Data,
    /// The caller's code panicked on a thread of the framework.
    Panic,
}

/// A failed operation, device or file.
///
/// `Display` shows the operation, what was expected and what was given, the operands with their shapes and parameter
/// paths, and a line of the caller's code. This is the line that recorded the operation, else the line of the call that
/// failed.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    op: Option<&'static str>,
    message: String,
    operands: Vec<Operand>,
    location: Option<&'static Location<'static>>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

#[derive(Clone)]
struct Operand {
    ty: TensorType,
    path: Option<Arc<str>>,
}

/// `std::result::Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of this kind.
    ///
    /// The message should state what was expected and what was found. It is cut after 16 KiB, since it may quote names
    /// and texts from a file.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner {
            kind,
            op: None,
            message: bounded(message.into()),
            operands: Vec::new(),
            location: None,
            source: None,
        }))
    }

    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The line of the caller's code that recorded the failed operation, or of the call that failed.
    ///
    /// `None` if it is unknown: after a call through a function pointer, or from the standard library, as in
    /// `tensors.iter().map(Tensor::item)` or `text.parse::<Schedule>()`.
    #[must_use]
    pub fn location(&self) -> Option<&'static Location<'static>> {
        self.0.location
    }

    /// The bare message: what was expected and what was found, without the operation, its operands and the line.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The operation that failed.
    pub(crate) fn op(&self) -> Option<&'static str> {
        self.0.op
    }

    fn inner(&mut self) -> &mut Inner {
        Arc::make_mut(&mut self.0)
    }

    #[doc(hidden)]
    pub fn in_op(mut self, op: &'static str) -> Self {
        self.inner().op.get_or_insert(op);
        self
    }

    #[doc(hidden)]
    pub fn operand(mut self, ty: TensorType, path: Option<Arc<str>>) -> Self {
        self.inner().operands.push(Operand { ty, path });
        self
    }

    /// The same error with this line, if the line is the user's and the error has none yet.
    #[doc(hidden)]
    pub fn at(mut self, location: &'static Location<'static>) -> Self {
        if self.0.location.is_none() && is_users(location) {
            self.inner().location = Some(location);
        }
        self
    }

    #[doc(hidden)]
    pub fn caused_by(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.inner().source = Some(Arc::new(source));
        self
    }

    /// The same error with `context: ` before its message.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        let inner = self.inner();
        inner.message = bounded(format!("{context}: {}", inner.message));
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { op, message, operands, location, .. } = &*self.0;
        if let Some(op) = op {
            write!(f, "{op}: ")?;
        }
        f.write_str(message)?;
        for (i, Operand { ty, path }) in operands.iter().enumerate() {
            write!(f, "\n  operand {i}: {ty}")?;
            if let Some(path) = path {
                write!(f, " (parameter {path})")?;
            }
        }
        if let Some(location) = location {
            write!(f, "\n  at {location}")?;
        }
        Ok(())
    }
}

// A panic from `unwrap` should read like the message.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| &**source as _)
    }
}

/// So that `?` works on the standard library's results in a function that returns this crate's [`Result`]. The error's
/// line is that of the `?`.
impl From<std::io::Error> for Error {
    #[track_caller]
    fn from(error: std::io::Error) -> Self {
        Self::new(crate::file::kind(&error), error.to_string()).caused_by(error).at(Location::caller())
    }
}

/// Runs the body of a public function. Its error gets the caller's line, unless it already has that of an operation.
///
/// Every public function that returns a `Result` is `#[track_caller]` and does this; `tests/suite/lines/` checks.
#[track_caller]
#[doc(hidden)]
pub fn here<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    let location = Location::caller();
    body().map_err(|error| error.at(location))
}

/// Async form of [`here`]. The line is that of the call, not of the `await`.
#[track_caller]
#[doc(hidden)]
pub fn here_async<T>(body: impl Future<Output = Result<T>>) -> impl Future<Output = Result<T>> {
    let location = Location::caller();
    async move { body.await.map_err(|error| error.at(location)) }
}

/// `false` for lines of this crate and of the standard library. Either means that the caller is unknown, since closures
/// and function pointers do not pass the caller's line on, nor do `Iterator::map` and `str::parse`.
fn is_users(location: &Location<'_>) -> bool {
    let file = location.file();
    // In unit tests this crate is its own user, and so is the guide.
    let is_code = !cfg!(test) && file.ends_with(".rs");
    let is_own = is_code && OWN.iter().any(|sources| file.starts_with(&**sources));
    let is_std = |library| file.replace('\\', "/").contains(&format!("/library/{library}/src/"));
    !is_own && !["core", "alloc", "std"].into_iter().any(is_std)
}

/// The folders of the framework's two crates, which are beside each other: in the repository, a registry's cache or a
/// vendored folder, where their names may end in a version.
static OWN: LazyLock<[String; 2]> = LazyLock::new(|| {
    let core = file!().strip_suffix("error.rs").expect("the name of this file");
    let above = core.rfind("meganeura-core").map_or(core.to_owned(), |at| {
        let (folder, name) = core.split_at(at);
        folder.to_owned() + &name.replacen("meganeura-core", "meganeura", 1)
    });
    [core.to_owned(), above]
});

/// A message that is short enough to print.
fn bounded(mut message: String) -> String {
    const LONGEST: usize = 1 << 14;
    let length = message.len();
    if length > LONGEST {
        message.truncate(message.floor_char_boundary(LONGEST));
        message += &format!("… ({length} bytes)");
    }
    message
}

/// A text from a user or a file, for a message; truncated if it is long.
pub fn shortened(text: &str) -> Cow<'_, str> {
    const LONGEST: usize = 256;
    if text.len() <= LONGEST {
        return Cow::Borrowed(text);
    }
    let start = text.floor_char_boundary(LONGEST / 2);
    Cow::Owned(format!("{}… ({} bytes)", &text[..start], text.len()))
}

#[doc(hidden)]
#[macro_export]
macro_rules! bail {
    ($kind:ident, $($message:tt)+) => {
        return Err($crate::Error::new($crate::ErrorKind::$kind, format!($($message)+)))
    };
}
pub use crate::bail;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Shape};

    #[test]
    fn texts_of_a_megabyte_are_not_printed() {
        let long = "é.".repeat(500_000);
        assert_eq!(shortened(&long).chars().count(), 85 + "… (1500000 bytes)".chars().count());
        assert_eq!(shortened("head.weight"), "head.weight");
        let error = Error::new(ErrorKind::Argument, long.clone()).context(long);
        assert!(error.message().len() < 1 << 15 && error.message().ends_with(" bytes)"));
    }

    #[test]
    fn an_error_of_a_file_becomes_one_of_this_crate() {
        let read = || -> Result<Vec<u8>> { Ok(std::fs::read("no/such/file")?) };
        let error = read().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(std::error::Error::source(&error).is_some_and(<dyn std::error::Error>::is::<std::io::Error>));
        let full = Error::from(std::io::Error::from(std::io::ErrorKind::OutOfMemory));
        assert_eq!((full.kind(), full.location().is_some()), (ErrorKind::OutOfMemory, true));
    }

    #[test]
    fn display_names_everything() {
        let error = Error::new(ErrorKind::Shape, "inner extents differ: 3 and 4")
            .in_op("matmul")
            .operand(TensorType::new(DType::F32, Shape::from([2, 3])), None)
            .operand(TensorType::new(DType::F32, Shape::from([4, 5])), Some("head.weight".into()));
        assert_eq!(
            error.to_string(),
            "matmul: inner extents differ: 3 and 4\n  operand 0: f32[2, 3]\n  operand 1: f32[4, 5] (parameter head.weight)"
        );
    }
}
