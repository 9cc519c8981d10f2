//! Two adapters in two pinned threads, against what the same cores can do at best.
//!
//! ```text
//! cargo bench -p pollux-fabric --bench threads
//! ```
//!
//! Each figure stands beside a bare one of the same run: half the round trip of a cache line
//! between the two cores, and the bandwidth of a copy. Runs are interleaved, and medians are shown.
//!
//! On two cores of a virtual machine (Xeon with AVX-512, clock of 2.3 GHz), from six runs:
//!
//! | what | figure | beside the bare one | wanted |
//! |---|---|---|---|
//! | half a cache line's round trip | 82 to 101 ns | | |
//! | RC, 64 octets inline, one way | 690 to 1200 ns | 8 to 13 x | 1.5 x |
//! | UD, 64 octets inline, one way | 570 to 980 ns | 7 to 10 x | 1.5 x |
//! | RC, 64 octets, batches of 32 | 2.2 to 3.1 M/s | | |
//! | RC, 1 MiB | 16 to 19 GB/s | 0.64 to 0.79 x | 0.8 x |
//!
//! What bounds the small ones is our own work: callgrind counts 4,900 instructions for a message,
//! its acknowledgement and the receive that is posted again, a quarter of them copies of frames and
//! requests of 200 to 400 octets on their way through the layers.
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

use core_affinity::CoreId;
use pollux_fabric::link::threads::{Clock, ThreadLink, pair};
use pollux_fabric::{Adapter, Port, SoftDevice, Time};
use pollux_mem::Memory;
use pollux_verbs::*;
use pollux_wire::address::{Guid, Lid, Qpn};
use pollux_wire::keys::QKey;
use pollux_wire::packet::RnrTimer;
use pollux_wire::psn::Psn;
use pollux_wire::units::{Mtu, TimeCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Interleaved runs, of which the median counts.
const RUNS: usize = 5;
const ROUNDS: u32 = 20_000;
const NOTHING: Completion = Completion {
    id: 0,
    status: CompletionStatus::General,
    kind: CompletionKind::Send,
    qpn: Qpn(0),
    octets: 0,
    with: With::Nothing,
    from: None,
};

fn main() {
    let cores = core_affinity::get_core_ids().filter(|cores| cores.len() >= 2);
    let Some(cores) = cores else { return println!("SKIP: there are not two cores") };
    let mut rows = [const { Vec::new() }; 6];
    for _ in 0..RUNS {
        rows[0].push(cache_line(&cores));
        rows[1].push(ping_pong(&cores, QpType::Rc));
        rows[2].push(ping_pong(&cores, QpType::Ud));
        rows[3].push(rate(&cores, 64, 32) * 1e-6);
        rows[4].push(rate(&cores, 1 << 20, 4) * f64::from(1 << 20) * 1e-9);
        rows[5].push(copy() * 1e-9);
    }
    let [line, rc, ud, rate, bandwidth, copy] = rows.map(median);
    println!("half a cache line's round trip   {line:8.1} ns");
    println!("RC 64 octets inline, one way     {rc:8.1} ns   {:.2} x", rc / line);
    println!("UD 64 octets inline, one way     {ud:8.1} ns   {:.2} x", ud / line);
    println!("RC 64 octets, batches of 32      {rate:8.2} M/s");
    println!("RC 1 MiB                         {bandwidth:8.2} GB/s {:.2} x", bandwidth / copy);
    println!("copy of 1 MiB                    {copy:8.2} GB/s");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs one closure on each core, and gives what the first says.
fn on_both<T: Send>(
    cores: &[CoreId],
    first: impl FnOnce() -> T + Send,
    second: impl FnOnce() + Send,
) -> T {
    std::thread::scope(|scope| {
        let pinned = scope.spawn(|| {
            core_affinity::set_for_current(cores[0]);
            first()
        });
        scope.spawn(|| {
            core_affinity::set_for_current(cores[1]);
            second();
        });
        pinned.join().expect("the first thread does not panic")
    })
}

fn cache_line(cores: &[CoreId]) -> f64 {
    let line = AtomicU64::new(0);
    let turn = |mine: u64| {
        for round in 0..u64::from(ROUNDS) {
            let expected = round * 2 + mine;
            while line.load(Ordering::Acquire) != expected {
                std::hint::spin_loop();
            }
            line.store(expected + 1, Ordering::Release);
        }
    };
    let begun = Instant::now();
    on_both(cores, || turn(0), || turn(1));
    begun.elapsed().as_nanos() as f64 / f64::from(ROUNDS) / 2.0
}

fn copy() -> f64 {
    let (from, mut to) = (vec![1u8; 1 << 20], vec![0u8; 1 << 20]);
    let begun = Instant::now();
    for _ in 0..500 {
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
    }
    500.0 * f64::from(1 << 20) / begun.elapsed().as_secs_f64()
}

struct End {
    device: SoftDevice<ThreadLink>,
    cq: Cq,
    qp: Qp,
    ah: Ah,
    region: MemoryRegion,
}

fn ends(qp_type: QpType) -> [End; 2] {
    let start = Instant::now();
    let clock: Clock = Arc::new(move || Time::START + start.elapsed());
    let mut lid = 0;
    let mut ends = pair(&clock).map(|link| {
        lid += 1;
        end(link, lid, qp_type)
    });
    let qpns = [0, 1].map(|i| ends[i].device.qpn(ends[i].qp).expect("it exists"));
    connect(&mut ends[0], qpns[1], 2, qp_type);
    connect(&mut ends[1], qpns[0], 1, qp_type);
    ends
}

fn end(link: ThreadLink, lid: u16, qp_type: QpType) -> End {
    let port = Port::active(Lid(lid), Guid(u64::from(lid)));
    let mut device = SoftDevice::new("soft", Adapter::new(port), link);
    let pd = device.create_pd().expect("there is room");
    let cq = device.create_cq(4096).expect("there is room");
    let memory = Memory::private(8 << 20).expect("there is memory");
    let region = device.register(pd, &memory, Access::ALL).expect("there is room");
    let init = QpInit {
        qp_type,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        send_requests_max: 1024,
        recv_requests_max: 1024,
        send_sges_max: 1,
        recv_sges_max: 1,
        inline_octets_max: 64,
        signal_all: false,
    };
    let qp = device.create_qp(&init).expect("there is room");
    let path = AddressVector { dlid: Lid(3 - lid), port: 1, ..AddressVector::default() };
    let ah = device.create_ah(pd, &path).expect("there is room");
    End { device, cq, qp, ah, region }
}

fn connect(end: &mut End, peer: Qpn, peer_lid: u16, qp_type: QpType) {
    let (rc, ud) = (qp_type == QpType::Rc, qp_type == QpType::Ud);
    let path = AddressVector { dlid: Lid(peer_lid), port: 1, ..AddressVector::default() };
    let init = QpAttributes {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        access: (!ud).then_some(Access::ALL),
        qkey: ud.then_some(QKey(1)),
        ..QpAttributes::default()
    };
    let rtr = QpAttributes {
        state: Some(QpState::Rtr),
        path: (!ud).then_some(path),
        path_mtu: (!ud).then_some(Mtu::OCTETS_4096),
        dest_qp: (!ud).then_some(peer),
        rq_psn: (!ud).then_some(Psn::new(0)),
        responder_resources: rc.then_some(4),
        min_rnr_timer: rc.then_some(RnrTimer(1)),
        ..QpAttributes::default()
    };
    let rts = QpAttributes {
        state: Some(QpState::Rts),
        sq_psn: Some(Psn::new(0)),
        timeout: rc.then_some(TimeCode(18)),
        retry_count: rc.then_some(Retries::SEVEN),
        rnr_retry: rc.then_some(Retries::SEVEN),
        initiator_depth: rc.then_some(4),
        ..QpAttributes::default()
    };
    for change in [init, rtr, rts] {
        end.device.modify_qp(end.qp, &change).expect("the table allows it");
    }
}

impl End {
    fn recv(&mut self, octets: u32) {
        let sge = [Sge { address: self.region.address, octets, lkey: self.region.lkey }];
        let request = RecvRequest { id: 0, sges: &sge };
        self.device.post_recv(self.qp, &[request]).expect("there is room");
    }

    /// Waits for a message.
    fn wait(&mut self) {
        let mut out = [NOTHING];
        loop {
            let count = self.device.poll(self.cq, &mut out).expect("it exists");
            if count == 1 && out[0].kind.is_recv() {
                return;
            }
        }
    }

    fn send_inline(&mut self, qp_type: QpType, peer: Qpn) {
        let to = Destination { ah: self.ah, qpn: peer, qkey: QKey(1) };
        let op = if qp_type == QpType::Ud { SendOp::Datagram(to) } else { SendOp::Send };
        let data = Data::Inline(&[7; 64]);
        let request = SendRequest { id: 0, op, flags: SendFlags::NONE, data };
        self.device.post_send(self.qp, &[request]).expect("there is room");
    }
}

/// Half the round trip of a message.
fn ping_pong(cores: &[CoreId], qp_type: QpType) -> f64 {
    let [mut a, mut b] = ends(qp_type);
    let [qpn_a, qpn_b] = [&a, &b].map(|end| end.device.qpn(end.qp).expect("it exists"));
    for _ in 0..64 {
        a.recv(128);
        b.recv(128);
    }
    let begun = Instant::now();
    on_both(
        cores,
        || {
            for _ in 0..ROUNDS {
                a.send_inline(qp_type, qpn_b);
                a.wait();
                a.recv(128);
            }
        },
        || {
            for _ in 0..ROUNDS {
                b.wait();
                b.send_inline(qp_type, qpn_a);
                b.recv(128);
            }
        },
    );
    begun.elapsed().as_nanos() as f64 / f64::from(ROUNDS) / 2.0
}

/// Messages a second, one way, in batches.
fn rate(cores: &[CoreId], octets: u32, batch: usize) -> f64 {
    let [mut a, mut b] = ends(QpType::Rc);
    let total = if octets > 4096 { 400 } else { 400_000 };
    let over = AtomicBool::new(false);
    for _ in 0..512 {
        b.recv(octets);
    }
    let sge = [Sge { address: a.region.address, octets, lkey: a.region.lkey }];
    let request = |flags| SendRequest { id: 0, op: SendOp::Send, flags, data: Data::Sges(&sge) };
    let mut requests = vec![request(SendFlags::NONE); batch];
    requests[batch - 1] = request(SendFlags::SIGNALED);
    let elapsed = on_both(
        cores,
        || {
            let begun = Instant::now();
            let (mut sent, mut done, mut out) = (0, 0, [NOTHING; 16]);
            while done < total {
                if sent < total && sent - done + batch <= 256 {
                    a.device.post_send(a.qp, &requests).expect("there is room");
                    sent += batch;
                }
                done += batch * a.device.poll(a.cq, &mut out).expect("it exists");
            }
            over.store(true, Ordering::Release);
            begun.elapsed()
        },
        || {
            let mut out = [NOTHING; 64];
            let mut came = 0;
            while came < total || !over.load(Ordering::Acquire) {
                let count = b.device.poll(b.cq, &mut out).expect("it exists");
                came += count;
                for _ in 0..count {
                    b.recv(octets);
                }
            }
        },
    );
    per_second(total, elapsed)
}

fn per_second(count: usize, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64()
}
