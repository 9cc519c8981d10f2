//! Long runs, small queues and many queue pairs.

use super::super::ConnectX;
use super::{changes, is_program, run};
use pollux_mem::Memory;
use pollux_verbs::{
    Access, Arm, Completion, CompletionStatus, Cq, Data, Device, MemoryRegion, Pd, Qp, QpInit,
    QpType, RecvRequest, SendFlags, SendOp, SendRequest, Sge, Srq,
};
use std::time::Duration;

/// More than the counters of queues have numbers.
const MESSAGES: u64 = 70_000;
/// Of each queue. With one more, the completion queue is a power of two.
const REQUESTS: u32 = 127;
const SIGNALED_EVERY: u64 = 16;
/// Bytes of the buffer of a receive.
pub(super) const BUFFER: usize = 256;

/// Two connected queue pairs of one device, and receives of the second.
pub(super) struct Pair {
    pub(super) qps: [Qp; 2],
    send_cq: Cq,
    pub(super) recv_cq: Cq,
    srq: Option<Srq>,
    pub(super) memory: Memory,
    region: MemoryRegion,
}

impl Pair {
    pub(super) fn new(device: &mut ConnectX, pd: Pd, requests_max: u32, is_shared: bool) -> Self {
        let [send_cq, recv_cq] = [0; 2].map(|_| device.create_cq(requests_max).unwrap());
        let srq = is_shared.then(|| device.create_srq(pd, requests_max, 1).unwrap());
        let init = QpInit {
            qp_type: QpType::Rc,
            pd,
            send_cq,
            recv_cq,
            srq,
            send_requests_max: requests_max,
            recv_requests_max: requests_max,
            send_sges_max: 1,
            recv_sges_max: 1,
            inline_bytes_max: 200,
            signal_all: false,
        };
        let qps = [0; 2].map(|_| device.create_qp(&init).unwrap());
        let lid = device.port(1).unwrap().lid;
        for (own, peer) in [(0, 1), (1, 0)] {
            let qpn = device.qpn(qps[peer]).unwrap();
            for change in changes(QpType::Rc, (lid, qpn)) {
                device.modify_qp(qps[own], &change).unwrap();
            }
        }
        let memory = Memory::private(requests_max as usize * BUFFER).unwrap();
        let region = device.register(pd, &memory, Access::LOCAL_WRITE).unwrap();
        Self { qps, send_cq, recv_cq, srq, memory, region }
    }

    /// Posts a receive into each of these buffers.
    pub(super) fn receive(&self, device: &mut ConnectX, buffers: &[u64]) {
        let sge = |buffer: &u64| {
            let address = self.region.address + buffer * BUFFER as u64;
            [Sge { address, bytes: BUFFER as u32, lkey: self.region.lkey }]
        };
        let sges: Vec<_> = buffers.iter().map(sge).collect();
        let requests = buffers.iter().zip(&sges).map(|(id, sges)| RecvRequest { id: *id, sges });
        let batch: Vec<_> = requests.collect();
        match self.srq {
            Some(srq) => device.post_srq_recv(srq, &batch),
            None => device.post_recv(self.qps[1], &batch),
        }
        .unwrap();
    }
}

/// Sleeps until a queue that was empty may not be so.
pub(super) fn wait(
    device: &mut ConnectX,
    cqs: &[Cq],
    out: &mut [Completion],
) -> Option<(Cq, usize)> {
    for cq in cqs {
        device.arm(*cq, Arm::Any).unwrap();
    }
    for cq in cqs {
        let count = device.poll(*cq, out).unwrap();
        if count > 0 {
            return Some((*cq, count));
        }
    }
    device.wait(Duration::from_secs(1)).unwrap();
    None
}

/// Sends numbered messages as fast as the queues take them, and finds each in its buffer, in order.
fn many_messages(is_shared: bool) {
    let mut device = ConnectX::open("mlx5_0", 1).unwrap();
    let pd = device.create_pd().unwrap();
    let pair = Pair::new(&mut device, pd, REQUESTS, is_shared);
    pair.receive(&mut device, &(0..REQUESTS.into()).collect::<Vec<_>>());
    let (mut sent, mut done, mut received) = (0, 0, 0);
    let mut out = [Completion::NOTHING; REQUESTS as usize];
    while received < MESSAGES || done < MESSAGES / SIGNALED_EVERY * SIGNALED_EVERY {
        while sent < MESSAGES && sent - done < REQUESTS.into() {
            let is_signaled = (sent + 1) % SIGNALED_EVERY == 0;
            let flags = if is_signaled { SendFlags::SIGNALED } else { SendFlags::NONE };
            let number = sent.to_be_bytes();
            let data = Data::Inline(&number);
            let request = SendRequest { id: sent, op: SendOp::Send, flags, data };
            device.post_send(pair.qps[0], &[request]).unwrap();
            sent += 1;
        }
        let Some((cq, count)) = wait(&mut device, &[pair.recv_cq, pair.send_cq], &mut out) else {
            continue;
        };
        for completion in &out[..count] {
            assert_eq!(completion.status, CompletionStatus::Success, "{completion:?}");
            if cq == pair.send_cq {
                done = completion.id + 1;
                continue;
            }
            let mut number = [0; 8];
            assert!(pair.memory.read(completion.id as usize * BUFFER, &mut number));
            assert_eq!((u64::from_be_bytes(number), completion.bytes), (received, 8));
            received += 1;
        }
        if cq == pair.recv_cq {
            let buffers: Vec<_> = out[..count].iter().map(|completion| completion.id).collect();
            pair.receive(&mut device, &buffers);
        }
    }
    // The queue of completions was as long as that of receives, and was never overrun.
    assert_eq!((sent, device.async_event()), (MESSAGES, None));
}

#[test]
fn program_of_many_messages() {
    if is_program() {
        many_messages(false);
    }
}

#[test]
fn more_messages_than_counters_have_numbers_arrive() {
    run("traffic::program_of_many_messages");
}

#[test]
fn program_of_many_shared_receives() {
    if is_program() {
        many_messages(true);
    }
}

#[test]
fn more_shared_receives_than_counters_have_numbers_are_used() {
    run("traffic::program_of_many_shared_receives");
}

/// Queue pairs of one context, which has 16 doorbell registers.
const PAIRS: usize = 32;
const ROUNDS: usize = 20;

#[test]
fn program_of_many_queue_pairs() {
    if !is_program() {
        return;
    }
    let mut device = ConnectX::open("mlx5_0", 1).unwrap();
    let pd = device.create_pd().unwrap();
    let pairs: Vec<_> = (0..PAIRS).map(|_| Pair::new(&mut device, pd, 4, false)).collect();
    assert!((2..=16).contains(&device.registers.len()), "{:?}", device.registers);
    let mut out = [Completion::NOTHING; 4];
    for round in 0..ROUNDS {
        // Of one to four blocks, through the register, and of more after one another.
        let message = |nth: usize| vec![(nth + round) as u8; 1 + (nth * 7 + round * 11) % 200];
        for (nth, pair) in pairs.iter().enumerate() {
            pair.receive(&mut device, &[0]);
            let message = message(nth);
            let (flags, data) = (SendFlags::SIGNALED, Data::Inline(&message));
            let request = SendRequest { id: 1, op: SendOp::Send, flags, data };
            device.post_send(pair.qps[0], &[request]).unwrap();
        }
        for (nth, pair) in pairs.iter().enumerate() {
            let expected = message(nth);
            for cq in [pair.recv_cq, pair.send_cq] {
                let mut got = device.poll(cq, &mut out).unwrap();
                while got == 0 {
                    got = wait(&mut device, &[cq], &mut out).map_or(0, |(_, count)| count);
                }
                assert_eq!((got, out[0].status), (1, CompletionStatus::Success));
            }
            let mut found = vec![0; expected.len()];
            assert!(pair.memory.read(0, &mut found));
            assert_eq!(found, expected, "pair {nth} in round {round}");
        }
    }
}

#[test]
fn many_queue_pairs_share_few_registers() {
    run("traffic::program_of_many_queue_pairs");
}
