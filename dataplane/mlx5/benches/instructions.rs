//! The instructions of a post and of a polled completion, compared with those of libmlx5 for the
//! same request.
//!
//! ```text
//! cargo bench -p pollux-mlx5 --features hca --bench instructions
//! ```
//!
//! The program starts itself on the software ConnectX, and counts by the trap flag of the
//! processor, which raises one signal for each instruction of the thread. Ours are calls of a trait
//! object, with the argument checks of the [`Device`] trait. Those of libmlx5 are the functions
//! that `ibv_post_send` and `ibv_poll_cq` call, with a request that is built only once. The bench
//! fails if ours need more instructions.
//!
//! Why libmlx5 opens an additional context, from which its functions are taken: `ibv_open_device`
//! is the one of the preloaded library, which replaces the functions of libmlx5 by its own
//! (`verbs_table`), and their instructions would be counted, too.
//!
//! Why not callgrind: the software ConnectX uses the kernel's page of clock functions (vDSO) in its
//! process, which valgrind does not map.
#![expect(clippy::disallowed_methods, reason = "it starts programs, and waits for an adapter")]
#![expect(unsafe_code, reason = "a library of C, and a signal")]

#[path = "../../connectx/tests/common/mod.rs"]
mod common;
#[path = "../src/device/tests/states.rs"]
mod states;

use common::{Hosts, finish, is_program};
use ibverbs_sys as ffi;
use pollux_ibverbs::Hca;
use pollux_mem::Memory;
use pollux_verbs::{
    Access, AddressVector, Ah, Completion, CompletionStatus, Cq, Data, Destination, Device, Qp,
    QpInit, QpType, RecvRequest, SendFlags, SendOp, SendRequest, Sge,
};
use pollux_wire::address::Qpn;
use pollux_wire::keys::QKey;
use states::changes;
use std::ffi::{CStr, c_void};
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

/// The number of counted requests. As many uncounted ones come before them.
const COUNT: usize = 32;
/// The number of completions that are polled with one call.
const POLLED: usize = 16;
const BYTES: usize = 4096;
/// The time in which the adapter completes [`POLLED`] requests. If it does not, they are drained
/// and posted again.
const SETTLED: Duration = Duration::from_millis(10);
const TRIES: usize = 100;
/// The number of receives: enough for all requests, as none is posted again.
const RECEIVES: u32 = 2048;

struct Case {
    name: &'static str,
    qp_type: QpType,
    bytes: usize,
    is_inline: bool,
}

const CASES: [Case; 3] = [
    Case { name: "RC, 64 bytes inline", qp_type: QpType::Rc, bytes: 64, is_inline: true },
    Case { name: "RC, 4 KiB of a region", qp_type: QpType::Rc, bytes: BYTES, is_inline: false },
    Case { name: "UD, 64 bytes of a region", qp_type: QpType::Ud, bytes: 64, is_inline: false },
];

fn main() {
    if is_program() {
        return program();
    }
    let hosts = Hosts::new();
    let own = std::env::current_exe().expect("this program");
    let child = hosts.start(0, own.to_str().expect("a path of text"), &[]);
    let (is_right, output) = finish("the bench", child);
    println!("{output}");
    assert!(is_right, "some take more instructions than libmlx5's");
}

fn program() {
    count::begin();
    let mut are_fewer = true;
    println!("\n| | ours | libmlx5's | ratio |\n|---|---|---|---|");
    for case in &CASES {
        for (what, [ours, theirs]) in run(case) {
            let ratio = ours as f64 / theirs as f64;
            println!("| {what}, {} | {ours} | {theirs} | {ratio:.2} |", case.name);
            are_fewer &= ours <= theirs;
        }
    }
    assert!(are_fewer);
}

/// Counts the instructions of this thread.
#[cfg(target_arch = "x86_64")]
mod count {
    use std::arch::asm;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    static TRAPS: AtomicU64 = AtomicU64::new(0);

    extern "C" fn trapped(_: i32) {
        TRAPS.fetch_add(1, Relaxed);
    }

    pub fn begin() {
        let handler = trapped as extern "C" fn(i32) as libc::sighandler_t;
        // SAFETY: the handler only adds to an atomic number, which is safe in a signal handler.
        assert_ne!(unsafe { libc::signal(libc::SIGTRAP, handler) }, libc::SIG_ERR);
    }

    /// The instructions of a function, including some of the call.
    #[inline(never)]
    fn all(function: impl FnOnce()) -> u64 {
        TRAPS.store(0, Relaxed);
        // SAFETY: the flag makes the processor trap into the handler after each instruction.
        unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
        function();
        // SAFETY: this restores the flag.
        unsafe { asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
        TRAPS.load(Relaxed)
    }

    pub fn instructions(function: impl FnOnce()) -> u64 {
        all(function) - all(|| ())
    }
}

/// Two queue pairs; the first sends to the second.
struct Pair {
    cq: Cq,
    qps: [Qp; 2],
    to: Destination,
    sge: Sge,
    _memory: Memory,
}

impl Pair {
    fn new(device: &mut dyn Device, qp_type: QpType) -> Self {
        let pd = device.create_pd().expect("a domain");
        let requests_max = 2 * COUNT as u32;
        let [cq, recv_cq] =
            [requests_max, RECEIVES].map(|length| device.create_cq(length).expect("a queue"));
        let init = QpInit {
            qp_type,
            pd,
            send_cq: cq,
            recv_cq,
            srq: None,
            send_requests_max: requests_max,
            recv_requests_max: RECEIVES,
            send_sges_max: 1,
            recv_sges_max: 1,
            inline_bytes_max: 64,
            signal_all: false,
        };
        let qps = [0; 2].map(|_| device.create_qp(&init).expect("a queue pair"));
        let dlid = device.port(1).expect("a port").lid;
        let qpns: [Qpn; 2] = qps.map(|qp| device.qpn(qp).expect("its number"));
        for (own, peer) in [(0, 1), (1, 0)] {
            for change in changes(qp_type, (dlid, qpns[peer])) {
                device.modify_qp(qps[own], &change).expect("a change");
            }
        }
        let path = AddressVector { dlid, port: 1, ..AddressVector::default() };
        let ah: Ah = device.create_ah(pd, &path).expect("an address handle");
        let memory = Memory::private(BYTES).expect("memory");
        let region = device.register(pd, &memory, Access::LOCAL_WRITE).expect("a region");
        let sge = Sge { address: region.address, bytes: BYTES as u32, lkey: region.lkey };
        for id in 0..RECEIVES {
            let receive = RecvRequest { id: id.into(), sges: &[sge] };
            device.post_recv(qps[1], &[receive]).expect("a receive");
        }
        let to = Destination { ah, qpn: qpns[1], qkey: QKey(1) };
        Self { cq, qps, to, sge, _memory: memory }
    }

    fn op(&self, case: &Case) -> SendOp {
        if case.qp_type == QpType::Ud { SendOp::Datagram(self.to) } else { SendOp::Send }
    }

    /// Waits for `count` completions of sends. Returns their number.
    fn drain(&self, device: &mut dyn Device, count: usize) -> usize {
        let mut done = 0;
        let mut out = [Completion::NOTHING; POLLED];
        while done < count {
            let got = device.poll(self.cq, &mut out).expect("the queue");
            assert!(out[..got].iter().all(|one| one.status == CompletionStatus::Success));
            done += got;
            std::thread::yield_now();
        }
        done
    }
}

/// The instructions of our functions and of libmlx5's, for a post and for a completion.
fn run(case: &Case) -> [(&'static str, [u64; 2]); 2] {
    let mut ours = pollux_mlx5::open("mlx5_0").expect("it opens").device;
    let mut theirs = Hca::open("mlx5_0", 1).expect("it opens");
    let inline = [7; 64];
    let pairs = [Pair::new(&mut *ours, case.qp_type), Pair::new(&mut theirs, case.qp_type)];
    let [own, other] = &pairs;
    let sges = pairs.each_ref().map(|pair| [Sge { bytes: case.bytes as u32, ..pair.sge }]);
    let request = |nth: usize| {
        let data = if case.is_inline { Data::Inline(&inline) } else { Data::Sges(&sges[nth]) };
        SendRequest { id: 7, op: pairs[nth].op(case), flags: SendFlags::SIGNALED, data }
    };
    // Warms up both.
    for _ in 0..COUNT {
        ours.post_send(own.qps[0], &[request(0)]).expect("it has room");
        theirs.post_send(other.qps[0], &[request(1)]).expect("it has room");
    }
    own.drain(&mut *ours, COUNT);
    other.drain(&mut theirs, COUNT);
    let mut library = Library::new(&theirs, other, case, &inline);
    let batch = [request(0)];
    // The minimum counts, because some posts of libmlx5 take thousands of instructions.
    let mut posts = [u64::MAX; 2];
    for _ in 0..COUNT {
        let post = || ours.post_send(own.qps[0], black_box(&batch)).expect("it has room");
        posts[0] = posts[0].min(count::instructions(post));
        posts[1] = posts[1].min(count::instructions(|| library.post()));
    }
    own.drain(&mut *ours, COUNT);
    other.drain(&mut theirs, COUNT);
    let mut out = [Completion::NOTHING; POLLED];
    let our_polls = polls(|step| match step {
        Step::Post => {
            for _ in 0..POLLED {
                ours.post_send(own.qps[0], &batch).expect("it has room");
            }
            0
        }
        Step::Poll => ours.poll(own.cq, black_box(&mut out)).expect("the queue"),
        Step::Drain(got) => own.drain(&mut *ours, POLLED - got),
    });
    let their_polls = polls(|step| match step {
        Step::Post => {
            (0..POLLED).for_each(|_| library.post());
            0
        }
        Step::Poll => library.poll(),
        Step::Drain(got) => other.drain(&mut theirs, POLLED - got),
    });
    [("post", posts), ("completion", [our_polls, their_polls].map(|all| all / POLLED as u64))]
}

enum Step {
    Post,
    Poll,
    /// Takes the remaining completions after this number.
    Drain(usize),
}

/// The instructions of a poll that finds as many completions as it requests.
fn polls(mut step: impl FnMut(Step) -> usize) -> u64 {
    for _ in 0..TRIES {
        step(Step::Post);
        std::thread::sleep(SETTLED);
        let mut got = 0;
        let instructions = count::instructions(|| got = step(Step::Poll));
        if got == POLLED {
            return instructions;
        }
        step(Step::Drain(got));
    }
    panic!("the adapter never completed {POLLED} requests in {SETTLED:?}");
}

type Post = unsafe extern "C" fn(
    *mut ffi::ibv_qp,
    *mut ffi::ibv_send_wr,
    *mut *mut ffi::ibv_send_wr,
) -> i32;
type Poll = unsafe extern "C" fn(*mut ffi::ibv_cq, i32, *mut ffi::ibv_wc) -> i32;

unsafe extern "C" {
    /// A function of libmlx5. The size of the attributes depends on its release; zeros request
    /// nothing.
    fn mlx5dv_open_device(
        device: *mut ffi::ibv_device,
        attributes: *const [u64; 4],
    ) -> *mut ffi::ibv_context;
}

/// The functions of libmlx5 that post to its queue pairs and poll its completion queues.
fn functions(hca: &Hca) -> (Post, Poll) {
    // SAFETY: the context is open, so its device exists. The second context is open until it is
    // closed below. Its functions belong to the library, which stays loaded.
    unsafe {
        let hooked = (*hca.raw_context()).ops;
        let context = mlx5dv_open_device((*hca.raw_context()).device, &[0; 4]);
        let ops = context.as_ref().expect("libmlx5 opens the device").ops;
        let (post, poll) = (ops.post_send.expect("it posts"), ops.poll_cq.expect("it polls"));
        for function in [post as *const c_void, poll as *const c_void] {
            let library = library_of(function);
            assert!(library.contains("/libmlx5"), "a function of {library} would be counted");
        }
        let hooked = library_of(hooked.post_send.expect("it posts") as *const c_void);
        assert!(hooked.contains("pollux_connectx"), "nothing is in front of libmlx5's: {hooked}");
        assert_eq!(ffi::ibv_close_device(context), 0);
        (post, poll)
    }
}

/// The path of the library that contains a function.
fn library_of(function: *const c_void) -> String {
    let mut found = MaybeUninit::uninit();
    // SAFETY: `dladdr` fills the structure if the address is in a library, and the path in it is
    // valid while the library is loaded.
    unsafe {
        assert_ne!(libc::dladdr(function, found.as_mut_ptr()), 0, "no library has the function");
        CStr::from_ptr(found.assume_init().dli_fname).to_string_lossy().into_owned()
    }
}

/// Calls of libmlx5, as programs make them.
struct Library {
    post: Post,
    poll: Poll,
    qp: *mut ffi::ibv_qp,
    cq: *mut ffi::ibv_cq,
    request: ffi::ibv_send_wr,
    entry: Box<ffi::ibv_sge>,
    completions: [ffi::ibv_wc; POLLED],
}

impl Library {
    fn new(hca: &Hca, pair: &Pair, case: &Case, inline: &[u8]) -> Self {
        let (post, poll) = functions(hca);
        let addr = if case.is_inline { inline.as_ptr() as u64 } else { pair.sge.address };
        let length = case.bytes as u32;
        let mut entry = Box::new(ffi::ibv_sge { addr, length, lkey: pair.sge.lkey.0 });
        let mut request = ffi::ibv_send_wr {
            wr_id: 7,
            sg_list: &raw mut *entry,
            num_sge: 1,
            opcode: ffi::ibv_wr_opcode::IBV_WR_SEND,
            send_flags: ffi::ibv_send_flags::IBV_SEND_SIGNALED.0,
            ..ffi::ibv_send_wr::default()
        };
        if case.is_inline {
            request.send_flags |= ffi::ibv_send_flags::IBV_SEND_INLINE.0;
        }
        if case.qp_type == QpType::Ud {
            request.wr.ud = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
                ah: hca.raw_ah(pair.to.ah).expect("it is there"),
                remote_qpn: pair.to.qpn.0,
                remote_qkey: pair.to.qkey.0,
            };
        }
        Self {
            post,
            poll,
            qp: hca.raw_qp(pair.qps[0]).expect("it is there"),
            cq: hca.raw_cq(pair.cq).expect("it is there"),
            request,
            entry,
            completions: [ffi::ibv_wc::default(); POLLED],
        }
    }

    #[inline]
    fn post(&mut self) {
        self.request.sg_list = black_box(&raw mut *self.entry);
        let mut bad = ptr::null_mut();
        // SAFETY: queue pair, request and entry exist during the call.
        let answer = unsafe { (self.post)(self.qp, &raw mut self.request, &raw mut bad) };
        assert_eq!(answer, 0);
    }

    #[inline]
    fn poll(&mut self) -> usize {
        // SAFETY: the queue exists, and the array has `POLLED` completions.
        let got = unsafe { (self.poll)(self.cq, POLLED as i32, self.completions.as_mut_ptr()) };
        usize::try_from(got).expect("the queue")
    }
}
