//! The content of the stream of the demonstration, which both ends know: the receiver compares
//! every byte.
//!
//! Why a pattern and not a hash: comparing costs next to nothing compared with the stream, and
//! finds the first wrong byte. Its length is prime, so that no buffer, segment or window is a
//! multiple of it: what is lost, repeated or exchanged in units of these differs.

/// The period, in bytes.
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
            // xorshift64: far from random, and no short run of it occurs twice.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        let mut bytes: Vec<u8> = (0..PERIOD).map(|_| next()).collect();
        bytes.extend_from_within(..);
        Self { bytes }
    }

    /// The bytes at this offset of a stream, up to a period.
    pub fn at(&self, offset: u64, len: usize) -> &[u8] {
        let start = (offset % PERIOD as u64) as usize;
        &self.bytes[start..start + len.min(PERIOD)]
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceivedStream {
    pub bytes: u64,
    /// The offset of the first wrong byte.
    pub first_wrong: Option<u64>,
}

impl ReceivedStream {
    /// Compares the next bytes.
    pub fn take(&mut self, pattern: &Pattern, mut received: &[u8]) {
        while !received.is_empty() {
            let expected = pattern.at(self.bytes, received.len());
            let (now, rest) = received.split_at(expected.len());
            if self.first_wrong.is_none() && now != expected {
                let same = now.iter().zip(expected).take_while(|(one, other)| one == other);
                self.first_wrong = Some(self.bytes + same.count() as u64);
            }
            self.bytes += now.len() as u64;
            received = rest;
        }
    }

    /// The message of the receiver to the sender.
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

    /// The report of a receiver of a stream in parts of such lengths.
    fn receive(stream: &[u8], part: usize) -> ReceivedStream {
        let (pattern, mut reception) = (Pattern::new(), ReceivedStream::default());
        stream.chunks(part).for_each(|part| reception.take(&pattern, part));
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
            // A byte in 256 is what belongs there by chance.
            let found = reception.first_wrong.expect("it is found");
            assert!((expected..expected + 4).contains(&found), "{found} for {expected}");
        }
    }
}
