//! Payloads: each message carries its number at several offsets, and the receiver checks them.
//!
//! ```text
//!   offset:  0                4096             8192                     the last word
//!            | number's word  | number's word  | number's word  ...     | number's word
//!              between them: a pattern of the offset, the same in all messages
//! ```
//!
//! The check detects messages that are repeated, reordered, truncated, mixed with another message,
//! or left in the buffer from an earlier one. The pattern between the words is checked in one
//! message of 256. Why not in all messages: writing and reading 1 MiB takes longer than sending it.

/// Bytes from one numbered word to the next.
const STRIDE: usize = 4096;
/// Messages up to this length have the number in every word, and all their bytes are checked.
const WHOLE_MAX: usize = 256;
/// Of longer messages, one of this many has its pattern checked.
const WHOLE_EVERY: u64 = 256;
const WORD: usize = 8;
/// Odd, so that it has an inverse modulo 2^64, which recovers the number from the first word.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Access to the bytes of a message by offset.
pub trait MessageMemory {
    fn read(&self, at: usize, out: &mut [u8]);
    fn write(&mut self, at: usize, bytes: &[u8]);
}

impl MessageMemory for [u8] {
    fn read(&self, at: usize, out: &mut [u8]) {
        out.copy_from_slice(&self[at..at + out.len()]);
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// The numbered word of a message at an offset.
fn word(number: u64, at: usize) -> [u8; WORD] {
    number.wrapping_mul(FACTOR).wrapping_add(at as u64).to_le_bytes()
}

/// The pattern between numbered words, which depends only on the offset.
fn background(at: usize) -> [u8; WORD] {
    (at as u64).wrapping_mul(FACTOR).to_le_bytes()
}

/// The offsets of the numbered words in a long message. The last word may be truncated.
fn numbered(bytes: usize) -> impl Iterator<Item = usize> {
    let last = (bytes - 1) / WORD * WORD;
    (0..last).step_by(STRIDE).chain([last])
}

/// Writes the pattern that all messages share.
pub fn prepare(memory: &mut (impl MessageMemory + ?Sized), bytes: usize) {
    for at in (0..bytes).step_by(WORD) {
        memory.write(at, &background(at)[..WORD.min(bytes - at)]);
    }
}

/// Writes a number into a message that was prepared, or that carries another number.
pub fn write(memory: &mut (impl MessageMemory + ?Sized), bytes: usize, number: u64) {
    if bytes > WHOLE_MAX {
        for at in numbered(bytes) {
            memory.write(at, &word(number, at)[..WORD.min(bytes - at)]);
        }
    } else {
        memory.write(0, &short(number, bytes)[..bytes]);
    }
}

/// A short message: every word carries the number.
fn short(number: u64, bytes: usize) -> [u8; WHOLE_MAX] {
    let mut message = [0; WHOLE_MAX];
    let (words, _) = message.as_chunks_mut();
    for (at, one) in words[..bytes.div_ceil(WORD)].iter_mut().enumerate() {
        *one = word(number, at * WORD);
    }
    message
}

/// The state of a receiver's check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PayloadCheck {
    /// The smallest number that the next message may have.
    next: u64,
    /// Messages with a wrong payload.
    pub wrong: u64,
}

/// A buffer for a message that is sent repeatedly, each time with the next number.
pub struct NumberedMessage {
    pub bytes: Vec<u8>,
    /// The number of the next message.
    next: u64,
    /// If false, the buffer is neither numbered nor checked.
    is_checked: bool,
    check: PayloadCheck,
}

impl NumberedMessage {
    pub fn new(bytes: usize, is_checked: bool) -> Self {
        let mut message = vec![0; bytes];
        prepare(&mut message[..], bytes);
        let (next, check) = (0, PayloadCheck::default());
        Self { bytes: message, next, is_checked, check }
    }

    /// Writes the next number.
    pub fn renew(&mut self) {
        if self.is_checked {
            let bytes = self.bytes.len();
            write(&mut self.bytes[..], bytes, self.next);
            self.next += 1;
        }
    }

    /// Checks a reply that was read into `bytes`: it must be the last message, sent back.
    pub fn check_answer(&mut self) {
        if self.is_checked {
            self.check.check_is(&self.bytes[..], self.bytes.len(), self.next - 1);
        }
    }

    /// Checks a message of the other end that was read into `bytes`.
    pub fn check_request(&mut self) {
        if self.is_checked {
            self.check.check(&self.bytes[..], self.bytes.len());
        }
    }

    pub const fn wrong(&self) -> u64 {
        self.check.wrong
    }
}

/// Messages of equal length in a byte stream, which reads may split anywhere.
pub struct MessageStream {
    buffer: Vec<u8>,
    /// Bytes of an incomplete message at the start of the buffer.
    have: usize,
    /// The length of a message.
    bytes: usize,
    check: PayloadCheck,
}

impl MessageStream {
    pub fn new(bytes: usize, read_bytes: usize) -> Self {
        let buffer = vec![0; read_bytes.max(bytes)];
        Self { buffer, have: 0, bytes, check: PayloadCheck::default() }
    }

    /// The space for the next read.
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.buffer[self.have..]
    }

    /// Adds `count` bytes, which were read into [`MessageStream::space`], and checks the messages
    /// that are now complete.
    pub fn take(&mut self, count: usize) {
        let end = self.have + count;
        let mut at = 0;
        while at + self.bytes <= end {
            self.check.check(&self.buffer[at..at + self.bytes], self.bytes);
            at += self.bytes;
        }
        self.buffer.copy_within(at..end, 0);
        self.have = end - at;
    }

    pub const fn wrong(&self) -> u64 {
        self.check.wrong
    }
}

impl PayloadCheck {
    /// Checks a message of a flow. Earlier messages may be lost, but numbers must increase. A
    /// message below eight bytes does not hold its whole number, so its order is not checked.
    pub fn check(&mut self, memory: &(impl MessageMemory + ?Sized), bytes: usize) {
        let number = number_of(memory, bytes);
        let is_in_order = bytes < WORD || number >= self.next;
        if is_in_order && is_whole(memory, bytes, number) {
            self.next = number.wrapping_add(1);
        } else {
            self.wrong += 1;
        }
    }

    /// Checks a message that may arrive in any order, and repeatedly.
    pub fn check_any(&mut self, memory: &(impl MessageMemory + ?Sized), bytes: usize) {
        self.check_is(memory, bytes, number_of(memory, bytes));
    }

    /// Checks the message with this number.
    pub fn check_is(&mut self, memory: &(impl MessageMemory + ?Sized), bytes: usize, number: u64) {
        self.wrong += u64::from(!is_whole(memory, bytes, number));
    }
}

/// The number of a message, from its first word. If the word is truncated, only its low bits are
/// right: eight for each byte.
fn number_of(memory: &(impl MessageMemory + ?Sized), bytes: usize) -> u64 {
    /// `FACTOR * INVERSE` is 1, modulo 2^64.
    const INVERSE: u64 = {
        let (mut inverse, mut digits) = (FACTOR, 3);
        while digits < u64::BITS {
            inverse = inverse.wrapping_mul(2u64.wrapping_sub(FACTOR.wrapping_mul(inverse)));
            digits *= 2;
        }
        inverse
    };
    let mut first = [0; WORD];
    memory.read(0, &mut first[..bytes.min(WORD)]);
    u64::from_le_bytes(first).wrapping_mul(INVERSE)
}

/// Whether the last word belongs to the message with this number.
pub fn has_end(memory: &(impl MessageMemory + ?Sized), bytes: usize, number: u64) -> bool {
    let at = (bytes - 1) / WORD * WORD;
    let (mut found, len) = ([0; WORD], bytes - at);
    memory.read(at, &mut found[..len]);
    found[..len] == word(number, at)[..len]
}

/// Whether a message has this number. Its pattern is checked as described in the module.
pub fn is_whole(memory: &(impl MessageMemory + ?Sized), bytes: usize, number: u64) -> bool {
    let mut found = [0; WHOLE_MAX];
    if bytes <= WHOLE_MAX {
        memory.read(0, &mut found[..bytes]);
        return found[..bytes] == short(number, bytes)[..bytes];
    }
    let mut is = |at: usize, expected: [u8; WORD]| {
        let len = WORD.min(bytes - at);
        memory.read(at, &mut found[..len]);
        found[..len] == expected[..len]
    };
    let is_numbered = numbered(bytes).all(|at| is(at, word(number, at)));
    let is_due = number.is_multiple_of(WHOLE_EVERY);
    is_numbered
        && (!is_due
            || (0..bytes - WORD).step_by(WHOLE_MAX).all(|at| {
                let len = WHOLE_MAX.min(bytes - WORD - at).next_multiple_of(WORD);
                memory.read(at, &mut found[..len]);
                let (words, _) = found[..len].as_chunks();
                let mut places = (at..).step_by(WORD).zip(words);
                places.all(|(at, word)| at.is_multiple_of(STRIDE) || *word == background(at))
            }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [usize; 11] = [1, 2, 7, 8, 9, 64, 255, 257, 4096, 5000, 100_000];

    fn message(bytes: usize, number: u64) -> Vec<u8> {
        let mut message = vec![0; bytes];
        prepare(&mut message[..], bytes);
        write(&mut message[..], bytes, number);
        message
    }

    #[test]
    fn messages_in_order_are_right_and_some_may_be_missing() {
        for bytes in SIZES {
            let mut check = PayloadCheck::default();
            let mut buffer = message(bytes, 0);
            for number in [0, 1, 2, 5, 6, 255, 256, 300, 1 << 40] {
                write(&mut buffer[..], bytes, number);
                check.check(&buffer[..], bytes);
                check.check_is(&buffer[..], bytes, number);
            }
            assert_eq!(check.wrong, 0, "{bytes} bytes");
        }
    }

    #[test]
    fn a_message_that_comes_again_or_too_late_is_wrong() {
        for bytes in SIZES.into_iter().filter(|bytes| *bytes >= WORD) {
            let mut check = PayloadCheck::default();
            for number in [3, 3, 2] {
                check.check(&message(bytes, number)[..], bytes);
            }
            assert_eq!(check.wrong, 2, "{bytes} bytes");
        }
    }

    /// Simulates a part that has not arrived, so that the buffer still has the earlier message.
    #[test]
    fn a_part_of_another_message_is_wrong() {
        for bytes in SIZES.into_iter().filter(|bytes| *bytes > WORD) {
            let (old, new) = (message(bytes, 7), message(bytes, 8));
            let mut parts = (0..bytes).step_by(STRIDE).chain([bytes - 1]);
            let mixed = |from: usize| {
                let mut mixed = new.clone();
                let to = bytes.min(from + STRIDE);
                mixed[from..to].copy_from_slice(&old[from..to]);
                mixed
            };
            let is_found = |from| {
                let mut check = PayloadCheck::default();
                check.check_is(&mixed(from)[..], bytes, 8);
                check.wrong == 1
            };
            assert!(parts.all(is_found), "{bytes} bytes");
        }
    }

    #[test]
    fn any_wrong_byte_is_found_in_one_message_of_many() {
        for bytes in [8, 100, 256, 300, 5000] {
            let whole = message(bytes, WHOLE_EVERY);
            for at in 0..bytes {
                let mut changed = whole.clone();
                changed[at] ^= 1;
                let mut check = PayloadCheck::default();
                check.check_is(&changed[..], bytes, WHOLE_EVERY);
                assert_eq!(check.wrong, 1, "byte {at} of {bytes}");
            }
        }
    }

    #[test]
    fn messages_of_a_stream_are_checked_however_they_are_read() {
        for bytes in [1, 8, 100, 5000] {
            let all: Vec<u8> = (0..50).flat_map(|number| message(bytes, number)).collect();
            for part in [1, 7, 64, 3000] {
                let mut stream = MessageStream::new(bytes, 4096);
                let mut left = &all[..];
                while !left.is_empty() {
                    let count = part.min(left.len()).min(stream.space().len());
                    stream.space()[..count].copy_from_slice(&left[..count]);
                    stream.take(count);
                    left = &left[count..];
                }
                assert_eq!(stream.wrong(), 0, "{bytes} bytes in parts of {part}");
            }
        }
        let mut stream = MessageStream::new(100, 4096);
        let mut all: Vec<u8> = (0..10).flat_map(|number| message(100, number)).collect();
        all.remove(500);
        stream.space()[..999].copy_from_slice(&all);
        stream.take(999);
        assert_eq!(stream.wrong(), 4, "those behind the byte that is missing");
    }
}
