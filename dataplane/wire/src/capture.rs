//! Captures: packets in a file that public dissectors read.
