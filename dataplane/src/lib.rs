//! What moves IP packets over InfiniBand: no slow protocol, no lock, no allocation on the way.
#![forbid(unsafe_code)]
