//! Errors of a topology specification or file, each with its remedy.

use super::{NODES_MAX, PORTS_MAX};
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyError {
    pub place: String,
    pub word: String,
    pub problem: Problem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    UnknownKind,
    Parameters(&'static str),
    Number { min: u32, max: u32 },
    Odd,
    TooManyNodes,
    TooManyPorts,
    UnknownLine,
    PortWithoutNode,
    Expected(&'static str),
    Rate,
    SameName,
    SameGuid,
    UnknownNode,
    UnknownPort,
    LinkedTwice,
    Empty,
}

impl TopologyError {
    pub(super) fn new(place: &str, word: &str, problem: Problem) -> Self {
        Self { place: place.into(), word: word.into(), problem }
    }
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: `{}`: {}", self.place, self.word, self.problem)
    }
}

impl std::error::Error for TopologyError {}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownKind => {
                "no such topology; take single:N, ring:N, torus:XxY, fat-tree:K, \
                 leaf-spine:LEAVESxSPINESxHOSTS or routed:NxM, or name a file by a path with a /"
            }
            Self::Parameters(form) => return write!(f, "write it as {form}"),
            Self::Number { min, max } => {
                return write!(f, "give a number from {min} to {max}");
            }
            Self::Odd => "half of a switch's ports go up and half down; give an even number",
            Self::TooManyNodes => {
                return write!(f, "a subnet has LIDs for {NODES_MAX} nodes; make it smaller");
            }
            Self::TooManyPorts => {
                return write!(
                    f,
                    "a node has at most {PORTS_MAX} ports; use more, smaller switches"
                );
            }
            Self::UnknownLine => {
                "begin the line with Switch, Ca, Hca, Rt, [PORT], KEY=VALUE or #, \
                 as ibnetdiscover does"
            }
            Self::PortWithoutNode => "put the line of its node before it",
            Self::Expected(what) => return write!(f, "put {what} here"),
            Self::Rate => {
                "give a width of 1, 2, 4, 8 or 12 and a speed from SDR to NDR, as in 4xEDR"
            }
            Self::SameName => "another node has this name; rename one of them",
            Self::SameGuid => "another node has this GUID; change one, or leave both to the seed",
            Self::UnknownNode => "no node has this name; give it a record, or remove the link",
            Self::UnknownPort => "its node has no such port; count its ports again",
            Self::LinkedTwice => {
                "one of the two ports has another link already; remove one of them"
            }
            Self::Empty => "there is no node in it; begin with a line such as Switch 8 \"S1\"",
        })
    }
}
