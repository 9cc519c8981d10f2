//! NodeDescription: the name of a node (IBA 14.2.5.2).

layout! {
    /// The name of a node: UTF-8, padded with zeros (IBA 14.2.5.2).
    pub struct NodeDescription: 64 bytes {
        0:0  512  bytes: [u8; 64],
    }
}

impl NodeDescription {
    /// Makes a description from `text`, truncated to 64 bytes at a character boundary.
    pub fn new(text: &str) -> Self {
        let len = text.floor_char_boundary(Self::LEN);
        let mut bytes = [0; Self::LEN];
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        Self { bytes }
    }

    /// The text, up to the first zero or the first byte that is not UTF-8.
    pub fn text(&self) -> &str {
        let before_zero = self.bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        before_zero.utf8_chunks().next().map_or("", |chunk| chunk.valid())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_is_cut_between_characters() {
        let long = "x".repeat(63) + "\u{e9}";
        assert_eq!(NodeDescription::new(&long).text(), "x".repeat(63));
        let full = "y".repeat(64);
        assert_eq!(NodeDescription::new(&full).text(), full);
    }

    #[test]
    fn text_ends_at_invalid_utf8() {
        let mut description = NodeDescription::new("node one");
        description.bytes[4] = 0xff;
        assert_eq!(description.text(), "node");
        assert_eq!(NodeDescription { bytes: [0xff; 64] }.text(), "");
    }

    proptest! {
        #[test]
        fn text_round_trips(text in "[^\0]{0,16}", bytes: [u8; 64]) {
            let own = NodeDescription::new(&text);
            prop_assert_eq!(own.text(), text);
            let foreign = NodeDescription { bytes };
            let copy = NodeDescription::new(foreign.text());
            prop_assert_eq!(copy.text(), foreign.text());
        }
    }
}
