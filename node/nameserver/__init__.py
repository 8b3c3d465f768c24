"""The name server: who the brokers are, where topics live, which HA epochs were given out."""
