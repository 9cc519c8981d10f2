//! Work queue entries (WQEs), as the adapter reads them.
//!
//! A WQE of a send queue is a control segment of 16 bytes, followed by segments that depend on the
//! operation, in units of 16 bytes:
//!
//! | request | segments, with their units |
//! |---|---|
//! | send | data |
//! | datagram | address vector (3), data |
//! | RDMA | remote address (1), data |
//! | atomic | remote address (1), operands (1), data |
//! | bind of a window | UMR control (3), mkey context (4), KLM (4) |
//! | invalidation of a window | UMR control (3), mkey context (4) |
//!
//! Data is one inline segment, padded to a unit, or one data segment for each scatter/gather entry
//! that is not empty, because a count of 0 would mean 2^31 bytes. A WQE of a receive queue consists
//! of data segments. A segment with [`TERMINATOR`] ends the list early.
//!
//! All fields are big-endian.

use pollux_verbs::work::Bind;
use pollux_verbs::{Access, Data, Destination, RKey, Remote, SendFlags, SendOp, Sge};

/// The length of a basic block in bytes. A send WQE begins at a block.
pub(crate) const BLOCK: usize = 64;
/// The length of a unit in bytes.
pub(crate) const UNIT: usize = 16;

/// The number of blocks that this number of units takes.
#[inline]
pub(crate) const fn blocks(units: usize) -> usize {
    units.div_ceil(BLOCK / UNIT)
}

/// A unit, in the byte order of memory.
pub(crate) type Unit = [u64; 2];
/// An address vector, in the byte order of memory. Its Q_Key and QPN are replaced for each
/// datagram.
pub(crate) type Av = [u64; 6];

/// The maximum length of a scatter/gather entry: the count has 31 bits.
pub(crate) const SGE_BYTES_MAX: u32 = (1 << 31) - 1;

/// Opcodes of send WQEs.
pub(crate) mod opcode {
    pub(crate) const NOP: u8 = 0x00;
    pub(crate) const SEND_INVAL: u8 = 0x01;
    pub(crate) const WRITE: u8 = 0x08;
    pub(crate) const WRITE_IMM: u8 = 0x09;
    pub(crate) const SEND: u8 = 0x0a;
    pub(crate) const SEND_IMM: u8 = 0x0b;
    pub(crate) const READ: u8 = 0x10;
    pub(crate) const CMP_SWAP: u8 = 0x11;
    pub(crate) const FETCH_ADD: u8 = 0x12;
    pub(crate) const UMR: u8 = 0x25;
}

/// Flags of a control segment.
pub(crate) mod flag {
    pub(crate) const SOLICITED: u8 = 0x02;
    /// Writes a CQE on success, too.
    pub(crate) const CQE_ALWAYS: u8 = 0x08;
    /// Waits for an earlier WQE that changes an mkey.
    pub(crate) const SMALL_FENCE: u8 = 0x20;
    /// Waits for all earlier reads and atomics.
    pub(crate) const FENCE: u8 = 0x80;
}

pub(crate) const INLINE: u32 = 1 << 31;
/// The address vector has all of its 48 bytes.
pub(crate) const EXTENDED_AV: u32 = 1 << 31;
/// The L_Key of the segment that ends a list.
pub(crate) const INVALID_LKEY: u32 = 0x100;
pub(crate) const TERMINATOR: Unit = [pair(0, INVALID_LKEY), 0];
/// The length of the response to an atomic, in bytes.
const ANSWER: u32 = 8;

/// Flags and fields of a UMR WQE.
pub(crate) mod umr {
    pub(crate) const INLINE: u8 = 0x80;
    pub(crate) const CHECK_FREE: u8 = 0x20;
    pub(crate) const TRANSLATION_OFFSET: u8 = 0x10;
    pub(crate) const CHECK_QPN: u8 = 0x08;
    /// The count for a list of one KLM: lists are padded to four.
    pub(crate) const ONE_KLM: u16 = 4;
    /// The mask of the mkey fields that change: key, QPN and the free flag.
    pub(crate) const MASK_STATE: u64 = 1 << 13 | 1 << 14 | 1 << 29;
    /// The mask of further fields: the length, the start address and the four access rights.
    pub(crate) const MASK_RANGE: u64 = 1 | 1 << 6 | 0xf << 18;
    pub(crate) const FREE: u8 = 0x40;
    pub(crate) const LOCAL_WRITE: u8 = 0x08;
    pub(crate) const REMOTE_READ: u8 = 0x10;
    pub(crate) const REMOTE_WRITE: u8 = 0x20;
    pub(crate) const ATOMIC: u8 = 0x40;
    /// The QPN of an mkey that belongs to no queue pair.
    pub(crate) const NO_QPN: u32 = 0xff_ffff;
    /// The maximum length of a window in bytes, which is that of a KLM.
    pub(crate) const BYTES_MAX: u64 = 1 << 31;
}

/// Two 32-bit words in order, in the byte order of memory.
const fn pair(first: u32, second: u32) -> u64 {
    ((first as u64) << 32 | second as u64).to_be()
}

/// Writes the units of a WQE after its control segment.
pub(crate) trait Units {
    fn put(&mut self, unit: Unit);

    /// Writes a word and then bytes, padded to a unit.
    fn put_bytes(&mut self, head: u32, bytes: &[u8]);
}

/// The fields of a control segment that depend on the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) opcode: u8,
    /// Immediate data, or the key to which the operation applies.
    pub(crate) imm: u32,
}

/// The control segment of a WQE that begins at block `index` and has `units` units.
#[inline]
pub(crate) fn control(operation: Operation, index: u16, qpn: u32, units: usize, flags: u8) -> Unit {
    let first = u32::from(index) << 8 | u32::from(operation.opcode);
    [pair(first, qpn << 8 | units as u32), pair(flags.into(), operation.imm)]
}

#[inline]
pub(crate) fn flags(flags: SendFlags) -> u8 {
    let one = |of: SendFlags, bit: u8| if flags.has(of) { bit } else { 0 };
    one(SendFlags::SIGNALED, flag::CQE_ALWAYS)
        | one(SendFlags::SOLICITED, flag::SOLICITED)
        | one(SendFlags::FENCE, flag::FENCE)
}

/// Writes the segments after the control segment of a request. `qpn` is that of the queue pair, and
/// `av` the address vector of a datagram.
#[inline(always)]
pub(crate) fn body(
    op: &SendOp,
    data: Data<'_>,
    av: Option<&Av>,
    qpn: u32,
    to: &mut impl Units,
) -> Operation {
    use opcode as code;
    let operation = |opcode, imm| Operation { opcode, imm };
    match *op {
        SendOp::Send => {
            put_data(data, to);
            operation(code::SEND, 0)
        }
        SendOp::SendImm(imm) => {
            put_data(data, to);
            operation(code::SEND_IMM, imm)
        }
        SendOp::SendInvalidate(rkey) => {
            put_data(data, to);
            operation(code::SEND_INVAL, rkey.0)
        }
        SendOp::Datagram(destination) => {
            put_address(destination, av, to);
            put_data(data, to);
            operation(code::SEND, 0)
        }
        SendOp::DatagramImm(destination, imm) => {
            put_address(destination, av, to);
            put_data(data, to);
            operation(code::SEND_IMM, imm)
        }
        SendOp::Write(remote) => {
            put_remote(remote, to);
            put_data(data, to);
            operation(code::WRITE, 0)
        }
        SendOp::WriteImm(remote, imm) => {
            put_remote(remote, to);
            put_data(data, to);
            operation(code::WRITE_IMM, imm)
        }
        SendOp::Read(remote) => {
            put_remote(remote, to);
            put_data(data, to);
            operation(code::READ, 0)
        }
        SendOp::CompareSwap { remote, compare, swap } => {
            put_atomic(remote, swap, compare, data, to);
            operation(code::CMP_SWAP, 0)
        }
        SendOp::FetchAdd { remote, add } => {
            put_atomic(remote, add, 0, data, to);
            operation(code::FETCH_ADD, 0)
        }
        SendOp::Bind(bind) if bind.bytes > 0 => {
            put_bind(&bind, qpn, to);
            operation(code::UMR, bind.window.0)
        }
        // A range of length 0 unbinds the window.
        SendOp::Bind(Bind { window, rkey, .. }) => {
            put_invalidation(rkey, to);
            operation(code::UMR, window.0)
        }
        SendOp::LocalInvalidate(window) => {
            put_invalidation(RKey(0), to);
            operation(code::UMR, window.0)
        }
        // `DatagramIn` is only for GSI queue pairs, which only the kernel has, so it was refused
        // before.
        SendOp::Nop | SendOp::DatagramIn(..) => operation(code::NOP, 0),
    }
}

/// The maximum number of units that [`body`] writes.
#[inline(always)]
pub(crate) fn body_units_max(op: &SendOp, data: Data<'_>) -> usize {
    let data = match data {
        Data::Inline(bytes) => (4 + bytes.len()).div_ceil(UNIT),
        Data::Sges(sges) => sges.len(),
    };
    match op {
        SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) => data,
        SendOp::Datagram(_) | SendOp::DatagramImm(..) | SendOp::DatagramIn(..) => 3 + data,
        SendOp::Write(_) | SendOp::WriteImm(..) | SendOp::Read(_) => 1 + data,
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => 2 + data,
        SendOp::Bind(_) => 11,
        SendOp::LocalInvalidate(_) => 7,
        SendOp::Nop => 0,
    }
}

#[inline]
pub(crate) fn segment(sge: &Sge, bytes: u32) -> Unit {
    [pair(bytes, sge.lkey.0), sge.address.to_be()]
}

#[inline(always)]
fn put_data(data: Data<'_>, to: &mut impl Units) {
    match data {
        Data::Inline([]) => {}
        Data::Inline(bytes) => to.put_bytes(INLINE | bytes.len() as u32, bytes),
        Data::Sges(sges) => {
            for sge in sges {
                if sge.bytes > 0 {
                    to.put(segment(sge, sge.bytes));
                }
            }
        }
    }
}

#[inline]
fn put_remote(remote: Remote, to: &mut impl Units) {
    to.put([remote.address.to_be(), pair(remote.rkey.0, 0)]);
}

fn put_atomic(remote: Remote, first: u64, second: u64, data: Data<'_>, to: &mut impl Units) {
    put_remote(remote, to);
    to.put([first.to_be(), second.to_be()]);
    let Data::Sges(sges) = data else { return };
    let mut left = ANSWER;
    for sge in sges {
        let bytes = sge.bytes.min(left);
        left -= bytes;
        if bytes > 0 {
            to.put(segment(sge, bytes));
        }
    }
}

#[inline(always)]
fn put_address(destination: Destination, av: Option<&Av>, to: &mut impl Units) {
    let av = av.unwrap_or(&[0; 6]);
    let rest = u64::from_be(av[1]) as u32;
    to.put([pair(destination.qkey.0, 0), pair(destination.qpn.0 | EXTENDED_AV, rest)]);
    to.put([av[2], av[3]]);
    to.put([av[4], av[5]]);
}

fn put_umr(flags: u8, klms: u16, mask: u64, to: &mut impl Units) {
    to.put([pair(u32::from(flags) << 24, u32::from(klms) << 16), mask.to_be()]);
    to.put([0; 2]);
    to.put([0; 2]);
}

fn put_bind(bind: &Bind, qpn: u32, to: &mut impl Units) {
    let flags = umr::INLINE | umr::CHECK_FREE | umr::TRANSLATION_OFFSET;
    put_umr(flags, umr::ONE_KLM, umr::MASK_STATE | umr::MASK_RANGE, to);
    let mut rights = 0;
    for (right, bit) in [
        (Access::LOCAL_WRITE, umr::LOCAL_WRITE),
        (Access::REMOTE_READ, umr::REMOTE_READ),
        (Access::REMOTE_WRITE, umr::REMOTE_WRITE),
        (Access::REMOTE_ATOMIC, umr::ATOMIC),
    ] {
        rights |= if bind.access.has(right) { bit } else { 0 };
    }
    to.put([pair(u32::from(rights) << 8, qpn << 8 | bind.rkey.0 & 0xff), 0]);
    to.put([bind.address.to_be(), bind.bytes.to_be()]);
    to.put([0; 2]);
    to.put([0; 2]);
    to.put([pair(bind.bytes as u32, bind.region.0), bind.address.to_be()]);
    to.put([0; 2]);
    to.put([0; 2]);
    to.put([0; 2]);
}

fn put_invalidation(rkey: RKey, to: &mut impl Units) {
    let flags = umr::INLINE | umr::TRANSLATION_OFFSET | umr::CHECK_QPN;
    put_umr(flags, 0, umr::MASK_STATE, to);
    to.put([pair(u32::from(umr::FREE) << 24, umr::NO_QPN << 8 | rkey.0 & 0xff), 0]);
    to.put([0; 2]);
    to.put([0; 2]);
    to.put([0; 2]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_verbs::{Ah, LKey};
    use pollux_wire::address::Qpn;
    use pollux_wire::keys::QKey;

    /// The 32-bit words of a WQE.
    #[derive(Default)]
    struct Words(Vec<u32>);

    impl Units for Words {
        fn put(&mut self, unit: Unit) {
            let words = unit.iter().flat_map(|word| [word.swap_bytes() >> 32, word.swap_bytes()]);
            self.0.extend(words.map(|word| word as u32));
        }

        fn put_bytes(&mut self, head: u32, bytes: &[u8]) {
            let mut all = [&head.to_be_bytes()[..], bytes].concat();
            all.resize(all.len().next_multiple_of(UNIT), 0);
            let words = all.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap()));
            self.0.extend(words);
        }
    }

    /// The WQE of a signaled request in the form in which libmlx5 prints it: words, which are 0
    /// where libmlx5 writes nothing.
    fn words(op: SendOp, data: Data<'_>, index: u16, qpn: u32, fence: u8) -> Vec<u32> {
        let mut to = Words::default();
        let mut av = [0; 6];
        av[1] = pair(0, 1);
        let operation = body(&op, data, Some(&av), qpn, &mut to);
        let units = 1 + to.0.len() / 4;
        assert!(units <= 1 + body_units_max(&op, data));
        let flags = flags(SendFlags::SIGNALED) | fence;
        let mut all = Words::default();
        all.put(control(operation, index, qpn, units, flags));
        all.0.extend(to.0);
        all.0
    }

    fn sge(bytes: u32, lkey: u32, address: u64) -> Sge {
        Sge { address, bytes, lkey: LKey(lkey) }
    }

    const REMOTE: Remote = Remote { address: 0x7fb1_089a_8008, rkey: RKey(0x1017) };

    // The expected words are from libmlx5 44.

    #[test]
    fn sends_are_libmlx5s() {
        let data = [sge(8, 0x2117, 0x7f9d_20b9_d000)];
        assert_eq!(
            words(SendOp::Send, Data::Sges(&data), 1, 0x67, 0),
            [0x0000_010a, 0x6702, 8, 0, 8, 0x2117, 0x7f9d, 0x20b9_d000]
        );
        let op = SendOp::SendImm(0x0123_4567);
        assert_eq!(words(op, Data::EMPTY, 0, 0x4e, 0), [0x0b, 0x4e01, 8, 0x0123_4567]);
        let data = [sge(100, 0x3417, 0x7f06_f880_9000)];
        let op = SendOp::SendInvalidate(RKey(0x3301));
        assert_eq!(
            words(op, Data::Sges(&data), 1, 0x76, 0),
            [0x0000_0101, 0x7602, 8, 0x3301, 100, 0x3417, 0x7f06, 0xf880_9000]
        );
    }

    #[test]
    fn rdma_is_libmlx5s() {
        let remote = Remote { address: 0x7f9d_20b9_c000, rkey: RKey(0x1917) };
        let data = [sge(64, 0x1817, 0x7f9d_20b9_d000)];
        let tail = [0x7f9d, 0x20b9_c000, 0x1917, 0, 64, 0x1817, 0x7f9d, 0x20b9_d000];
        let op = SendOp::WriteImm(remote, 0x89ab_cdef);
        let expected = [&[9, 0x5803, 8, 0x89ab_cdef][..], &tail].concat();
        assert_eq!(words(op, Data::Sges(&data), 0, 0x58, 0), expected);
        let expected = [&[0x10, 0x4903, 8, 0][..], &tail].concat();
        assert_eq!(words(SendOp::Read(remote), Data::Sges(&data), 0, 0x49, 0), expected);
    }

    #[test]
    fn atomics_are_libmlx5s() {
        let data = [sge(8, 0x1117, 0x7fb1_089a_7008)];
        let (head, tail) = ([0x7fb1, 0x089a_8008, 0x1017, 0], [8, 0x1117, 0x7fb1, 0x089a_7008]);
        let op = SendOp::CompareSwap { remote: REMOTE, compare: 7, swap: 9 };
        let expected = [&[0x11, 0x4404, 8, 0][..], &head, &[0, 9, 0, 7], &tail].concat();
        assert_eq!(words(op, Data::Sges(&data), 0, 0x44, 0), expected);
        let op = SendOp::FetchAdd { remote: REMOTE, add: 2 };
        let expected = [&[0x12, 0x5804, 8, 0][..], &head, &[0, 2, 0, 0], &tail].concat();
        assert_eq!(words(op, Data::Sges(&data), 0, 0x58, 0), expected);
    }

    /// The WQE has only the entries that take a part of the eight bytes.
    #[test]
    fn an_atomics_answer_may_be_scattered() {
        let data = [sge(6, 1, 0x1000), sge(0, 2, 0x2000), sge(100, 3, 0x3000), sge(8, 4, 0x4000)];
        let op = SendOp::FetchAdd { remote: REMOTE, add: 2 };
        let words = words(op, Data::Sges(&data), 0, 0x44, 0);
        assert_eq!(words[1] & 0x3f, 5);
        assert_eq!(words[12..], [6, 1, 0, 0x1000, 2, 3, 0, 0x3000]);
    }

    #[test]
    fn datagrams_are_libmlx5s() {
        let data = [sge(100, 0x1017, 0x7efd_e900_1000)];
        let to = Destination { ah: Ah(1), qpn: Qpn(0x45), qkey: QKey(0x1234_5678) };
        let mut expected = vec![0x0a, 0x4405, 8, 0, 0x1234_5678, 0, 0x8000_0045, 1];
        expected.extend([0; 8]);
        expected.extend([100, 0x1017, 0x7efd, 0xe900_1000]);
        assert_eq!(words(SendOp::Datagram(to), Data::Sges(&data), 0, 0x44, 0), expected);
        let words = words(SendOp::Datagram(to), Data::Inline(&[7; 828]), 0, 0x6c, 0);
        assert_eq!((words[1], words[16], words[17]), (0x6c38, 0x8000_033c, 0x0707_0707));
    }

    #[test]
    fn entries_without_bytes_are_left_out() {
        let data = [sge(0, 1, 0x1000), sge(8, 2, 0x2000), sge(0, 3, 0x3000)];
        let expected = [0x0a, 0x4402, 8, 0, 8, 2, 0, 0x2000];
        assert_eq!(words(SendOp::Send, Data::Sges(&data), 0, 0x44, 0), expected);
        assert_eq!(words(SendOp::Send, Data::Inline(&[]), 0, 0x44, 0), [0x0a, 0x4401, 8, 0]);
    }

    #[test]
    fn windows_are_libmlx5s() {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let bind = Bind {
            window: RKey(0x1100),
            rkey: RKey(0x1101),
            region: LKey(0x1017),
            address: 0x7f06_f7fc_8000,
            bytes: 1000,
            access,
        };
        let mut expected = vec![0x25, 0x450c, 8, 0x1100, 0xb000_0000, 0x0004_0000, 0, 0x203c_6041];
        expected.extend([0; 8]);
        expected.extend([0x7000, 0x4501, 0, 0, 0x7f06, 0xf7fc_8000, 0, 1000]);
        expected.extend([0; 8]);
        expected.extend([1000, 0x1017, 0x7f06, 0xf7fc_8000]);
        expected.extend([0; 12]);
        assert_eq!(words(SendOp::Bind(bind), Data::EMPTY, 0, 0x45, 0), expected);
        let mut expected = vec![0x325, 0x6808, 0x28, 0x2701, 0x9800_0000, 0, 0, 0x2000_6000];
        expected.extend([0; 8]);
        expected.extend([0x4000_0000, 0xffff_ff00]);
        expected.extend([0; 14]);
        let op = SendOp::LocalInvalidate(RKey(0x2701));
        assert_eq!(words(op, Data::EMPTY, 3, 0x68, flag::SMALL_FENCE), expected);
    }

    #[test]
    fn the_terminator_has_the_invalid_key() {
        let mut words = Words::default();
        words.put(TERMINATOR);
        assert_eq!(words.0, [0, 0x100, 0, 0]);
    }
}
