//! How a management class describes itself (IBA 13.4.8.1).
