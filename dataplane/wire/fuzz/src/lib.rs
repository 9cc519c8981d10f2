//! Round trips that the targets share.
#![forbid(unsafe_code)]

/// For each layout: if the bytes can be read, writing the value and reading it again gives the same
/// value.
#[macro_export]
macro_rules! survives {
    ($bytes:expr, $($layout:ty),+) => {$(
        if let Ok((value, _)) = <$layout>::read($bytes) {
            assert_eq!(<$layout>::parse(&value.emit()), value);
        }
    )+};
}

/// For each message: if the bytes can be parsed, writing the message and parsing it again gives the
/// same message.
#[macro_export]
macro_rules! round_trips {
    ($bytes:expr, $($message:ty),+) => {$(
        if let Ok(message) = <$message>::parse($bytes) {
            let _ = format!("{message:?}");
            // Writing may add padding, so the output can be longer than the input.
            let mut out = vec![0; $bytes.len() + 64];
            let room = out.len();
            let left = message.write(&mut out).expect("there is room").len();
            assert_eq!(<$message>::parse(&out[..room - left]), Ok(message));
        }
    )+};
}
