//! Stores to doorbells and records, in order and out of order.

use super::Pair;
use super::program::send;
use crate::doorbell::PAGE_BYTES;
use crate::objects::QpObject;
use crate::store_rules::{Rules, StoreFault};
use crate::wqe::BLOCK;

/// The first queue pair of a pair posts, and each of its stores is judged.
struct Judge {
    pair: Pair,
    rules: Rules,
}

impl Judge {
    fn new() -> Self {
        Self { pair: Pair::new(16), rules: Rules::new() }
    }

    fn qp(&self, end: usize) -> &QpObject {
        let number = self.pair.qps[end].handle;
        self.pair.program.hca.qps.get(number).unwrap()
    }

    /// Writes the next WQE into the ring, and its record; returns the bytes of its blocks.
    fn write(&mut self) -> [u8; BLOCK] {
        let Pair { program, qps, buffer, lkey, .. } = &mut self.pair;
        let wqe = send(&qps[0], *buffer, 9, *lkey);
        let mut block = [0; BLOCK];
        block[..wqe.len()].copy_from_slice(&wqe);
        let at = u64::from(qps[0].sent) % 64 * BLOCK as u64;
        program.store(qps[0].send_ring + at, &block);
        qps[0].sent = qps[0].sent.wrapping_add(1);
        program.store(qps[0].record + 4, &u32::from(qps[0].sent).to_be_bytes());
        block
    }

    /// A store to a half of the register of a queue pair.
    fn store(
        &mut self,
        end: usize,
        (half, at): (usize, usize),
        word: &[u8],
    ) -> Result<(), StoreFault> {
        let register = self.qp(end).register as usize;
        let register = register / 2 * PAGE_BYTES + 0x800 + register % 2 * 512;
        let (context, hca) = (self.pair.program.context, &self.pair.program.hca);
        self.rules.store(hca, context, register + half * 256 + at, word.try_into().unwrap())
    }

    /// Stores to a half: words of a WQE up to one that is wrong.
    fn burst(&mut self, half: usize, wqe: &[u8]) -> Result<(), StoreFault> {
        let mut words = wqe.chunks(8).enumerate();
        words.try_for_each(|(nth, word)| self.store(0, (half, nth * 8), word))
    }
}

#[test]
fn doorbells_in_order_are_right() {
    let mut judge = Judge::new();
    for nth in 0..70_000 {
        let wqe = judge.write();
        assert_eq!(judge.store(0, (nth % 2, 0), &wqe[..8]), Ok(()), "{nth}");
    }
}

#[test]
fn wqes_in_order_are_right() {
    let mut judge = Judge::new();
    for half in [0, 1, 0, 1] {
        let wqe = judge.write();
        assert_eq!(judge.burst(half, &wqe), Ok(()));
    }
    let counts = judge.rules.counts;
    assert_eq!((counts.doorbells, counts.words, counts.wrong), (4, 4 * 7, 0));
}

#[test]
fn doorbells_of_one_word_may_use_one_half() {
    let mut judge = Judge::new();
    for _ in 0..3 {
        let wqe = judge.write();
        assert_eq!(judge.store(0, (0, 0), &wqe[..8]), Ok(()));
    }
}

#[test]
fn a_half_is_not_used_twice_in_a_row() {
    let mut judge = Judge::new();
    let register = judge.qp(0).register;
    for (half, expected) in
        [(0, Ok(())), (0, Err(StoreFault::Half { register, half: 0 })), (1, Ok(()))]
    {
        let wqe = judge.write();
        assert_eq!(judge.burst(half, &wqe), expected);
        judge.rules.counts.wrong = 0;
    }
}

#[test]
fn words_of_a_wqe_ascend_without_a_gap() {
    let register = Judge::new().qp(0).register;
    let order = |at| Err(StoreFault::Order { register, at });
    for (half, at, expected) in [(0, 8, Ok(())), (0, 16, order(16)), (1, 8, order(8))] {
        let mut judge = Judge::new();
        let wqe = judge.write();
        assert_eq!(judge.store(0, (0, 0), &wqe[..8]), Ok(()));
        assert_eq!(judge.store(0, (half, at), &wqe[at..at + 8]), expected);
    }
    let mut judge = Judge::new();
    let wqe = judge.write();
    assert_eq!(judge.burst(0, &wqe), Ok(()));
    assert_eq!(judge.store(0, (0, BLOCK), &[0; 8]), order(BLOCK));
}

#[test]
fn a_wqe_is_written_to_its_end() {
    let mut judge = Judge::new();
    let wqe = judge.write();
    assert_eq!(judge.burst(0, &wqe[..48]), Ok(()));
    let wqe = judge.write();
    let qpn = judge.qp(0).qpn.0;
    let cut = StoreFault::Cut { qpn, index: 0, stored: 48, bytes: BLOCK };
    assert_eq!(judge.burst(1, &wqe), Err(cut));
}

#[test]
fn a_doorbell_agrees_with_ring_record_and_register() {
    let (qpn, other) = (Judge::new().qp(0).qpn.0, Judge::new().qp(1).register);
    let mut judge = Judge::new();
    let wqe = judge.write();
    let (own, record) = (judge.qp(0).register, judge.pair.qps[0].record);
    let found = judge.store(1, (0, 0), &wqe[..8]);
    assert_eq!(found, Err(StoreFault::Register { qpn, found: other, own }));
    judge.pair.program.store(record + 4, &[0; 4]);
    let found = judge.store(0, (0, 0), &wqe[..8]);
    assert_eq!(found, Err(StoreFault::Record { qpn, behind: 1, found: 0 }));
    judge.pair.program.store(record + 4, &[0, 0, 0, 1]);
    judge.pair.program.store(judge.pair.qps[0].send_ring + 3, &[0x0b]);
    let found = judge.store(0, (1, 0), &wqe[..8]);
    assert_eq!(found, Err(StoreFault::Differs { qpn, index: 0, at: 0 }));
    let mut stranger = wqe;
    stranger[4] = 0xff;
    let found = judge.store(0, (0, 0), &stranger[..8]);
    assert!(matches!(found, Err(StoreFault::NoQueuePair { .. })), "{found:?}");
    let (context, hca) = (judge.pair.program.context, &judge.pair.program.hca);
    let found = judge.rules.store(hca, context, 0x30, [0; 8]);
    assert_eq!(found, Err(StoreFault::NoRegister { offset: 0x30 }));
    assert_eq!(judge.rules.load(0x20), Err(StoreFault::Load { offset: 0x20 }));
    assert_eq!(judge.rules.counts.wrong, 6);
}

#[test]
fn an_arm_agrees_with_its_record() {
    let mut judge = Judge::new();
    let cqn = judge.pair.cqs[0].handle & 0xff_ffff;
    let arm = |judge: &mut Judge, arm: u32, cqn: u32| {
        let word = [arm.to_be_bytes(), cqn.to_be_bytes()].concat();
        let (context, hca) = (judge.pair.program.context, &judge.pair.program.hca);
        judge.rules.store(hca, context, 0x20, word.try_into().unwrap())
    };
    let fault = StoreFault::Arm { cqn, stored: 0x1000_0003, record: 0 };
    assert_eq!(arm(&mut judge, 0x1000_0003, cqn), Err(fault));
    judge.pair.program.store(judge.pair.cqs[0].record + 4, &[0x10, 0, 0, 3]);
    assert_eq!(arm(&mut judge, 0x1000_0003, cqn), Ok(()));
    let fault = StoreFault::NoCompletionQueue { cqn: 0xff_ffff };
    assert_eq!(arm(&mut judge, 0, 0xff_ffff), Err(fault));
}

#[test]
fn a_record_is_stored_when_the_ring_has_its_wqes() {
    let mut judge = Judge::new();
    judge.write();
    judge.write();
    let number = judge.pair.qps[0].handle;
    let record = |judge: &mut Judge, before| {
        let Judge { pair, rules } = judge;
        rules.record(pair.program.hca.qps.get(number).unwrap(), before)
    };
    assert_eq!(record(&mut judge, 0), Ok(()));
    assert_eq!(record(&mut judge, 2), Ok(()), "only the other word was stored");
    let qpn = judge.qp(0).qpn.0;
    judge.pair.program.store(judge.pair.qps[0].record + 4, &[0, 0, 0, 3]);
    let fault = StoreFault::NoWqe { qpn, index: 2, record: 3 };
    assert_eq!(record(&mut judge, 0), Err(fault));
    let counts = judge.rules.counts;
    assert_eq!((counts.records, counts.wrong), (2, 1));
}
