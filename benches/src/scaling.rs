//! Scaling: two workers on two cores against one worker on one core. Workers share no memory that
//! they write, so two workers should reach twice the rate of one.
//!
//! | what | each worker |
//! |---|---|
//! | echo | sends back the packets of its own null device |
//! | UDP | exchanges datagrams between two interfaces of a fabric that all workers share |
//!
//! Measurements of one worker and of two workers alternate. The result is the median of the ratios.
//!
//! Results on two cores of a virtual machine (AMD EPYC), 23 November 2026, with other load (load
//! averages of 5 to 7), `--rounds 5 --duration 0.5`: echo 1.96 (1.92 to 3.11), UDP 2.01 (0.93 to
//! 2.10).

use crate::datagrams::DatagramEnds;
use crate::echo;
use crate::environment::Environment;
use crate::error::PerfError;
use crate::judgement::Estimate;
use crate::machine::run_pinned;
use pollux_node::fabric::Embedded;
use serde::Serialize;
use std::fmt;
use std::sync::Barrier;
use std::thread::scope;
use std::time::Duration;

/// The rates of one worker and of two workers, per second, and their ratio.
#[derive(Clone, Debug, Serialize)]
pub struct ScalingRow {
    pub what: &'static str,
    /// With one worker, on the first core.
    pub one: Estimate,
    pub two: Estimate,
    /// The ratio of two workers to one, over all rounds.
    pub ratio: Estimate,
}

#[derive(Clone, Debug, Serialize)]
pub struct Scaling {
    pub environment: Environment,
    pub rows: Vec<ScalingRow>,
}

pub fn run(cores: [usize; 2], rounds: usize, duration: Duration) -> Result<Scaling, PerfError> {
    let environment = Environment::now(None);
    let fabric = Embedded::start("single:4")?;
    let echoes = |cores: &[usize]| at_once(cores, |_, core| echo::rate(core, duration));
    let datagrams = |cores: &[usize]| {
        let barrier = Barrier::new(cores.len());
        at_once(cores, |worker, core| exchange(&fabric, worker, core, duration, &barrier))
    };
    let rows = vec![
        row("echo, packets/s", cores, rounds, echoes)?,
        row("UDP, round trips/s", cores, rounds, datagrams)?,
    ];
    Ok(Scaling { environment, rows })
}

fn row(
    what: &'static str,
    cores: [usize; 2],
    rounds: usize,
    rate: impl Fn(&[usize]) -> Result<f64, PerfError>,
) -> Result<ScalingRow, PerfError> {
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        one.push(rate(&cores[..1])?);
        two.push(rate(&cores)?);
    }
    let ratios = one.iter().zip(&two).map(|(one, two)| two / one).collect();
    Ok(ScalingRow {
        what,
        one: Estimate::of_rounds(one),
        two: Estimate::of_rounds(two),
        ratio: Estimate::of_rounds(ratios),
    })
}

/// Runs one worker on each core at the same time. Returns the sum of their rates.
fn at_once(
    cores: &[usize],
    rate: impl Fn(u8, usize) -> Result<f64, PerfError> + Sync,
) -> Result<f64, PerfError> {
    scope(|scope| {
        let rate = &rate;
        let workers: Vec<_> = (0..)
            .zip(cores)
            .map(|(worker, core)| scope.spawn(move || rate(worker, *core)))
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker does not panic")).sum()
    })
}

fn exchange(
    fabric: &Embedded,
    worker: u8,
    core: usize,
    duration: Duration,
    all_are_up: &Barrier,
) -> Result<f64, PerfError> {
    let hosts = [1, 2].map(|host| host + 2 * worker);
    run_pinned(core, || {
        let ends = DatagramEnds::open(fabric, hosts);
        // A worker that failed has to wait, too: otherwise the barrier would never open.
        all_are_up.wait();
        let count = ends?.exchange_for(duration, &mut 0)?;
        Ok(count as f64 / duration.as_secs_f64())
    })
}

impl fmt::Display for Scaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.environment)?;
        writeln!(
            f,
            "medians (and intervals at 95 %, from six rounds on); the ratio is that of each round"
        )?;
        writeln!(f, "{:20}  {:>34}  {:>34}  {:>20}", "", "one worker", "two workers", "ratio")?;
        for ScalingRow { what, one, two, ratio } in &self.rows {
            let [one, two] = [one, two].map(ToString::to_string);
            let ratio = ratio.to_string();
            writeln!(f, "{what:20}  {one:>34}  {two:>34}  {ratio:>20}")?;
        }
        Ok(())
    }
}
