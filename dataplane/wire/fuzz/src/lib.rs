//! What the targets share.
#![forbid(unsafe_code)]

/// For each layout: if it can be read, what is written of it reads the same.
#[macro_export]
macro_rules! survives {
    ($octets:expr, $($layout:ty),+) => {$(
        if let Ok((value, _)) = <$layout>::read($octets) {
            assert_eq!(<$layout>::parse(&value.emit()), value);
        }
    )+};
}
