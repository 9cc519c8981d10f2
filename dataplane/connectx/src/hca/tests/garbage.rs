//! Garbage in commands, rings, records and doorbells, from a seed.

use super::program::{Program, ProgramCq, ProgramQp, bytes_of, control};
use super::{RC, UD};
use crate::abi::command;
use crate::wqe::{BLOCK, opcode};
use pollux_verbs::rng::SeededRng;
use rustix::io::Errno;
use zerocopy::IntoBytes;

const SEEDS: u64 = 8;
const STEPS: u32 = 500;

/// All commands that the kernel has, and some that it does not have.
const NUMBERS: u64 = 60;
const BODY_BYTES_MAX: u64 = 160;
const EXTENDED: u32 = 0x8000_0000;

/// A program that knows the formats and fills them with garbage.
struct Garbler {
    rng: SeededRng,
    program: Program,
    cqs: Vec<ProgramCq>,
    qps: Vec<ProgramQp>,
}

impl Garbler {
    fn new(seed: u64) -> Self {
        let mut program = Program::new();
        let pd = program.pd();
        let cqs = vec![program.cq(16), program.cq(4)];
        let qps: Vec<_> = [RC, RC, UD]
            .iter()
            .zip([0, 1, 0])
            .map(|(of, cq)| program.qp(*of, pd, &cqs[cq], 16))
            .collect();
        for qp in [0, 1, 2] {
            program.connect(&qps[qp], qps[1 - qp.min(1)].qpn).unwrap();
        }
        let buffer = program.take(4096);
        program.region(pd, buffer, 4096);
        Self { rng: SeededRng::new(seed), program, cqs, qps }
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.rng.below(values.len() as u64) as usize]
    }

    /// A number as it could be in any field: a handle, a count, a size, a state, or nothing of it.
    fn word(&mut self) -> u32 {
        let numbers = [0, 1, 2, 3, 4, 7, 16, 63, 64, 128, 1 << 15, u32::MAX];
        let handle = self.one_of(&self.qps.iter().map(|qp| qp.handle).collect::<Vec<_>>());
        match self.rng.below(4) {
            0 => self.rng.next_u64() as u32,
            1 => handle,
            _ => self.one_of(&numbers),
        }
    }

    /// An address: in the program's memory, or where there can be none.
    fn address(&mut self) -> u64 {
        let inside = self.program.arena + self.rng.below(1 << 20);
        self.one_of(&[inside, inside & !4095, 0, 8, 0x1000, 1 << 62, 1 << 63, u64::MAX - 7])
    }

    fn body(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        while (body.len() as u64) < BODY_BYTES_MAX {
            match self.rng.below(4) {
                0 => body.extend(self.address().to_ne_bytes()),
                _ => body.extend([self.word(), self.word()].as_bytes()),
            }
        }
        let bytes = self.rng.below(BODY_BYTES_MAX + 1) / 4 * 4;
        body.truncate(bytes as usize);
        body
    }

    fn command(&mut self) {
        let number = self.rng.below(NUMBERS) as u32;
        let (body, answer) = (self.body(), self.one_of(&[0, 4, 16, 72, 600]));
        let mut bytes = bytes_of(number, &[&body], answer);
        match self.rng.below(8) {
            // The extended form, whose words have 8 bytes.
            0 | 1 if bytes.len().is_multiple_of(8) && bytes.len() >= 24 => {
                let words = (bytes.len() - 24) / 8;
                bytes[..4].copy_from_slice(&(number | EXTENDED).to_ne_bytes());
                let own = self.rng.below(words as u64 + 1) as u16;
                bytes[4..6].copy_from_slice(&(words as u16 - own).to_ne_bytes());
                bytes[16..18].copy_from_slice(&own.to_ne_bytes());
                bytes[18..20].copy_from_slice(&[3, 0]);
            }
            2 => bytes.truncate(self.rng.below(bytes.len() as u64 + 1) as usize),
            3 => bytes = (0..self.rng.below(64)).map(|_| self.rng.next_u64() as u8).collect(),
            _ => {}
        }
        let _ = self.program.write(&bytes);
    }

    /// A WQE that may be good but for some field, or is garbage behind its control segment.
    fn wqe(&mut self) {
        let nth = self.rng.below(self.qps.len() as u64) as usize;
        let qp = self.qps[nth];
        let known = [opcode::SEND, opcode::SEND_IMM, opcode::SEND_INVAL, opcode::WRITE];
        let others = [opcode::READ, opcode::CMP_SWAP, opcode::FETCH_ADD, opcode::UMR, opcode::NOP];
        let opcode = match self.rng.below(8) {
            0 => self.rng.next_u64() as u8,
            1..4 => self.one_of(&others),
            _ => self.one_of(&known),
        };
        let units = self.rng.below(20) as u8 + 1;
        let (index, qpn) = match self.rng.below(16) {
            0 => (self.word() as u16, qp.qpn),
            1 => (qp.sent, self.word()),
            _ => (qp.sent, qp.qpn),
        };
        let mut wqe = control(opcode, index, qpn, units);
        wqe[8..16].copy_from_slice(&self.rng.next_u64().to_ne_bytes());
        while wqe.len() < usize::from(units) * 16 {
            wqe.extend(match self.rng.below(2) {
                0 => self.address().to_be_bytes(),
                _ => (u64::from(self.word()) << 32 | u64::from(self.word())).to_be_bytes(),
            });
        }
        self.program.post(&mut self.qps[nth], &wqe);
    }

    /// Bytes of a ring, a record or a doorbell page that are none.
    fn scribble(&mut self) {
        let qp = self.one_of(&self.qps.clone());
        let cq = self.one_of(&self.cqs.clone());
        let bytes = self.rng.next_u64().to_ne_bytes();
        let at = self.rng.below(16) * BLOCK as u64 + self.rng.below(8) * 8;
        match self.rng.below(6) {
            0 => self.program.store(qp.send_ring + at, &bytes),
            1 => self.program.store(qp.record, &bytes),
            2 => self.program.store(cq.record, &bytes),
            3 => self.program.store(cq.ring + at % 256, &bytes),
            4 => self.program.ring(self.rng.below(16) as u32, bytes),
            _ => {
                // The arm of a completion queue, or of none.
                let cqn = [0, 0, 0, self.rng.below(4) as u8];
                assert!(self.program.doorbells.write(0x20, &[&bytes[..4], &cqn].concat()));
            }
        }
    }

    fn step(&mut self) {
        match self.rng.below(8) {
            0..3 => self.command(),
            3..5 => self.wqe(),
            5 => self.scribble(),
            // A queue pair that failed is set up again, so that its rings are looked at.
            6 => {
                let nth = self.rng.below(self.qps.len() as u64) as usize;
                let qp = &mut self.qps[nth];
                let reset = crate::abi::ModifyQp {
                    qp_handle: qp.handle,
                    attr_mask: 1,
                    ..Default::default()
                };
                if self.program.modify(reset).is_ok() {
                    qp.sent = 0;
                    let (qp, to) = (*qp, qp.qpn);
                    self.program.store(qp.record, &[0; 8]);
                    let _ = self.program.connect(&qp, to);
                }
            }
            _ => self.program.turns(),
        }
    }
}

#[test]
fn garbage_fails_what_it_is_in_and_nothing_else() {
    for seed in 0..SEEDS {
        let mut garbler = Garbler::new(seed);
        // Lines about faults are not of interest here.
        garbler.program.hca.faults_reported = u32::MAX;
        (0..STEPS).for_each(|_| garbler.step());
        let mut program = garbler.program;
        program.hca.close(program.context);
        assert!(program.has_no_objects(), "seed {seed}");
        assert_eq!(program.hca.contexts.iter().count(), 0);
        // A program with another context finds the adapter as it was.
        let (context, ..) = program.hca.open().unwrap();
        program.context = context;
        let pd = program.pd();
        let cq = program.cq(16);
        program.qp(RC, pd, &cq, 16);
    }
}

/// Each command in all lengths up to that of a longest one, and a byte that is no word.
#[test]
fn a_command_of_any_length_has_an_answer() {
    let mut program = Program::new();
    for number in 0..NUMBERS as u32 {
        for bytes in 0..BODY_BYTES_MAX as usize {
            let body = vec![0xff; bytes];
            let _ = program.command(number, &[&body], 72);
            let _ = program.command(number, &[&body], 0);
        }
    }
    for bytes in 0..8 {
        assert_eq!(program.write(&vec![0; bytes]), Err(Errno::INVAL), "{bytes}");
    }
    // A header that names another length than that of the write.
    let mut longer = bytes_of(command::ALLOC_PD, &[], 8);
    longer.push(0);
    assert_eq!(program.write(&longer), Err(Errno::INVAL));
    program.hca.close(program.context);
    assert!(program.has_no_objects());
}
