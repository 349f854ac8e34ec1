"""The native library: how it is compiled (:mod:`build`) and how it is found and loaded (:mod:`load`)."""
