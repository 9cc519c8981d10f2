//! CPU usage of an end: its CPU time divided by the elapsed time, in cores.

use crate::plan::{Plan, ProgramSockets};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::time::Instant;

/// Measures the CPU usage of this end since [`CpuWatch::start`].
pub struct CpuWatch {
    begun: Instant,
    /// A CPU clock and its reading at the start. `None` if no clock covers this end alone.
    clock: Option<(ClockId, f64)>,
}

impl CpuWatch {
    /// For an end in its own process, the usage is that of the process. For an end in a thread, it
    /// is that of the thread, and unknown with pinned sockets: their workers are other threads.
    #[expect(clippy::disallowed_methods, reason = "this is what is measured")]
    pub fn start(plan: &Plan) -> Self {
        let clock = match (plan.processes, plan.program) {
            (true, _) => Some(ClockId::ProcessCPUTime),
            (false, Some(ProgramSockets::Pinned)) => None,
            (false, _) => Some(ClockId::ThreadCPUTime),
        };
        Self { begun: Instant::now(), clock: clock.map(|clock| (clock, seconds(clock))) }
    }

    pub fn cores_busy(&self) -> Option<f64> {
        let (clock, before) = self.clock?;
        Some((seconds(clock) - before) / self.begun.elapsed().as_secs_f64())
    }
}

/// The CPU time of this process since it started.
pub fn process_seconds() -> f64 {
    seconds(ClockId::ProcessCPUTime)
}

fn seconds(clock: ClockId) -> f64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
    tv_sec as f64 + tv_nsec as f64 * 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Layer, MeasuredTransport, What};

    #[expect(clippy::disallowed_methods, reason = "the thread is to be idle, or busy")]
    fn busy(plan: &Plan, is_busy: bool) -> Option<f64> {
        let watch = CpuWatch::start(plan);
        let end = watch.begun + std::time::Duration::from_millis(100);
        while Instant::now() < end {
            if !is_busy {
                std::thread::sleep(end.saturating_duration_since(Instant::now()));
            }
        }
        watch.cores_busy()
    }

    /// The busy thread may have to wait for a core, so it only has to use more than the idle one.
    #[test]
    fn a_thread_that_sleeps_keeps_no_core_busy() {
        let plan = Plan::new(What::Lat, Layer::Verbs, MeasuredTransport::Rc, 64);
        let [idle, all] = [false, true].map(|is_busy| busy(&plan, is_busy).expect("it is known"));
        assert!(idle < 0.1 && all > idle && all <= 1.001, "{idle} {all}");
        let pinned = Plan { program: Some(ProgramSockets::Pinned), ..plan };
        assert_eq!(busy(&pinned, false), None);
    }
}
