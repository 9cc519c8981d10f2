//! What is answered, and what must not be.
