//! Limits of the cores of a run, for any program: the rate of memory copies, and the time of a
//! cache line between the cores. Reports show them beside the measured figures.

use crate::judgement::three_digits;
use crate::machine;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Controls {
    /// The rate at which one core copies memory, 1 MiB at a time.
    pub copy_bytes_per_second: f64,
    /// Half the round trip of a cache line that both cores write; `None` on one core.
    pub cache_line_ns: Option<f64>,
}

const TRIES: u32 = 5;

impl Controls {
    pub fn measure(cores: [usize; 2]) -> Self {
        // Take the best attempt, because other load only makes an attempt slower.
        let copies = (0..TRIES).map(|_| machine::run_pinned(cores[0], machine::copy));
        let lines = (0..TRIES).map(|_| machine::lines(cores, false));
        Self {
            copy_bytes_per_second: copies.fold(0.0, f64::max),
            cache_line_ns: (cores[0] != cores[1]).then(|| lines.fold(f64::INFINITY, f64::min)),
        }
    }
}

impl fmt::Display for Controls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let copies = three_digits(self.copy_bytes_per_second * 1e-9);
        write!(f, "a core copies {copies} GB/s")?;
        match self.cache_line_ns {
            Some(ns) => write!(f, "; a cache line takes {} ns to the other", three_digits(ns)),
            None => Ok(()),
        }
    }
}
