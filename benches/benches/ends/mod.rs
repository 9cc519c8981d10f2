//! Two connected ends, which may run in two threads.

use pollux_fabric::SoftDevice;
use pollux_fabric::link::threads::ThreadLink;
use pollux_mem::Memory;
use pollux_perf::verbs::end::{BYTES, VerbsEnd, VerbsEndSetup, devices};

pub type ThreadEnd = VerbsEnd<SoftDevice<ThreadLink>>;

/// Creates each end in its own thread, so that the allocations of the two share no cache line.
pub fn ends(setup: VerbsEndSetup, packets_only: bool) -> [ThreadEnd; 2] {
    let mut ends = std::thread::scope(|scope| {
        let made = devices(packets_only).map(|device| {
            scope.spawn(move || {
                let memory = Memory::private(BYTES).expect("there is memory");
                VerbsEnd::new(Box::new(device), 1, &memory, &setup).expect("there is room")
            })
        });
        made.map(|end| end.join().expect("it is made"))
    });
    let addresses = [0, 1].map(|at| ends[at].address().expect("its port is up"));
    for (end, other) in ends.iter_mut().zip(addresses.iter().rev()) {
        end.connect(other).expect("the table allows it");
    }
    ends
}
