//! The content of the demonstration's stream, which both ends know. The receiver compares every
//! byte, up to the first wrong one.
//!
//! Why a pattern and not a hash: a comparison costs almost nothing beside the stream, and finds the
//! first wrong byte. The period is prime, so a part of the stream that is shifted by the length of
//! some buffers, segments or windows does not match.

/// The period of the pattern, in bytes.
const PERIOD: usize = 262_147;

/// The bytes of a stream.
pub struct Pattern {
    /// Two periods, so that a period is contiguous at each offset.
    bytes: Vec<u8>,
}

impl Pattern {
    /// The pattern; all instances are equal.
    pub fn new() -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            // xorshift64: runs of eight bytes do not repeat within a period.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        let mut bytes: Vec<u8> = (0..PERIOD).map(|_| next()).collect();
        bytes.extend_from_within(..);
        Self { bytes }
    }

    /// The `len` bytes at this offset of a stream, but at most a period.
    pub fn at(&self, offset: u64, len: usize) -> &[u8] {
        let start = (offset % PERIOD as u64) as usize;
        &self.bytes[start..start + len.min(PERIOD)]
    }
}

/// The bytes of a stream that were received, and the first wrong one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceivedStream {
    pub bytes: u64,
    /// The offset of the first wrong byte.
    pub first_wrong: Option<u64>,
}

impl ReceivedStream {
    /// Compares the next bytes.
    pub fn compare(&mut self, pattern: &Pattern, mut received: &[u8]) {
        while !received.is_empty() {
            let expected = pattern.at(self.bytes, received.len());
            let (part, rest) = received.split_at(expected.len());
            if self.first_wrong.is_none() && part != expected {
                let same = part.iter().zip(expected).take_while(|(one, other)| one == other);
                self.first_wrong = Some(self.bytes + same.count() as u64);
            }
            self.bytes += part.len() as u64;
            received = rest;
        }
    }

    /// The report of the receiver to the sender: the number of bytes, and the offset of the first
    /// wrong one, all bits set if there is none.
    pub fn to_bytes(self) -> [u8; 16] {
        let wrong = self.first_wrong.unwrap_or(u64::MAX);
        (u128::from(self.bytes) << 64 | u128::from(wrong)).to_be_bytes()
    }

    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let both = u128::from_be_bytes(bytes);
        let wrong = both as u64;
        Self { bytes: (both >> 64) as u64, first_wrong: (wrong != u64::MAX).then_some(wrong) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a receiver finds in a stream that arrives in parts of this length.
    fn receive(stream: &[u8], part: usize) -> ReceivedStream {
        let (pattern, mut reception) = (Pattern::new(), ReceivedStream::default());
        stream.chunks(part).for_each(|part| reception.compare(&pattern, part));
        assert_eq!(ReceivedStream::from_bytes(reception.to_bytes()), reception);
        reception
    }

    fn stream(len: usize) -> Vec<u8> {
        let pattern = Pattern::new();
        (0..len).map(|at| pattern.at(at as u64, 1)[0]).collect()
    }

    #[test]
    fn a_stream_received_as_sent_has_no_wrong_byte() {
        let sent = stream(3 * PERIOD + 5);
        for part in [1460, 65_480, 1 << 18, sent.len()] {
            let expected = ReceivedStream { bytes: sent.len() as u64, first_wrong: None };
            assert_eq!(receive(&sent, part), expected);
        }
    }

    #[test]
    fn a_changed_lost_repeated_or_exchanged_byte_is_found_where_it_is() {
        let sent = stream(2 * PERIOD);
        let mut changed = sent.clone();
        changed[300_000] ^= 1;
        let mut lost = sent.clone();
        lost.drain(100_000..165_480);
        let mut repeated = sent.clone();
        repeated.splice(200_000..200_000, sent[198_000..200_000].iter().copied());
        let mut exchanged = sent.clone();
        exchanged[65_536..3 * 65_536].rotate_left(65_536);
        let cases = [(changed, 300_000), (lost, 100_000), (repeated, 200_000), (exchanged, 65_536)];
        for (received, expected) in cases {
            let reception = receive(&received, 4096);
            assert_eq!(reception.bytes, received.len() as u64);
            // By chance, one wrong byte in 256 is equal to the expected one.
            let found = reception.first_wrong.expect("it is found");
            assert!((expected..expected + 4).contains(&found), "{found} for {expected}");
        }
    }
}
