#[module(no_display)]
enum Norm<T> {
    Group(GroupNorm),
    Spectral { weight: Param, #[module(frozen)] inner: Box<Norm<T>>, #[module(skip)] note: T },
    Skipped(#[module(skip)] T),
    None,
}
