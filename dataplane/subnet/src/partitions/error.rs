//! Errors of a partition file, each with its remedy.

use super::PARTITIONS_MAX;
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionError {
    pub file: String,
    pub line: usize,
    pub word: String,
    pub problem: PartitionProblem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartitionProblem {
    Unfinished,
    Name,
    PKey,
    SameKey,
    UnknownFlag,
    NeedsIpoib,
    Value(&'static str),
    Member,
    Membership,
    TooMany,
}

impl fmt::Display for PartitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: `{}`: {}", self.file, self.line, self.word, self.problem)
    }
}

impl std::error::Error for PartitionError {}

impl fmt::Display for PartitionProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unfinished => "end the partition with ;",
            Self::Name => {
                "begin the partition with its name, as in blue=0x8123, ipoib : ALL=full ;"
            }
            Self::PKey => "give a key from 0x1 to 0x7fff; the bit of full membership is not in it",
            Self::SameKey => "another partition has this key; change one of them",
            Self::UnknownFlag => {
                "take ipoib, mtu=, rate=, sl=, scope=, Q_Key=, TClass=, FlowLabel=, indx0 or \
                 defmember="
            }
            Self::NeedsIpoib => "it is about a group; put ipoib before it, or remove it",
            Self::Value(values) => return write!(f, "give {values}"),
            Self::Member => {
                "name a port by its GUID as in 0x0002c903000010f1, or take ALL, ALL_CAS, \
                 ALL_SWITCHES, ALL_ROUTERS or SELF"
            }
            Self::Membership => "take full, limited or both",
            Self::TooMany => {
                return write!(f, "there is room for {PARTITIONS_MAX}; remove some");
            }
        })
    }
}
