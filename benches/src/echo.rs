//! The engine alone: a worker with a null device that sends every packet back.

use crate::error::PerfError;
use crate::machine::run_pinned;
use pollux_dataplane::engine::counts::CountsWriter;
use pollux_dataplane::engine::echo::Echo;
use pollux_dataplane::engine::idle::Idle;
use pollux_dataplane::engine::{Turn, worker};
use pollux_fabric::null::NullDevice;
use pollux_verbs::time::Time;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

const NEIGHBORS: u32 = 1000;
/// Turns of the worker between two checks of the duration.
const TURNS: u32 = 1000;

/// The rate of 64-byte packets that this core receives and sends back.
#[expect(clippy::disallowed_methods, reason = "this is what is measured")]
pub fn rate(core: usize, duration: Duration) -> Result<f64, PerfError> {
    run_pinned(core, || {
        let own = Ipv4Addr::new(10, 0, 0, 1);
        let mut echo = Echo::new(NullDevice::new(), own, NEIGHBORS)?;
        let published = CountsWriter::nowhere();
        let published = published.map_err(|error| PerfError::Local(error.to_string()))?;
        let (mut worker, _handle) = worker::<()>(Idle::Poll, published, 7);
        let start = Instant::now();
        // Each turn reads the clock, as a real worker does.
        let mut turns = |echo: &mut Echo<NullDevice>, duration: Duration| {
            let (begun, before) = (Instant::now(), echo.echoed());
            while begun.elapsed() < duration {
                for _ in 0..TURNS {
                    let turn = worker.turn(Time::START + start.elapsed(), echo);
                    debug_assert!(turn == Turn::Again, "there is always another packet");
                }
            }
            (echo.echoed() - before) as f64 / begun.elapsed().as_secs_f64()
        };
        turns(&mut echo, duration / 10);
        Ok(turns(&mut echo, duration))
    })
}
