#[module(no_display, named_variants)]
enum Norm<T> {
    Group(GroupNorm),
    #[module(rename = "spectral")]
    Spectral { weight: Param, #[module(frozen)] inner: Box<Norm<T>>, #[module(skip)] note: T },
    Skipped(#[module(skip)] T),
    None,
}
