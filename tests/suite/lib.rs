//! What the tests need of the framework beyond its public interface comes through its `testing` feature; nothing is here.
