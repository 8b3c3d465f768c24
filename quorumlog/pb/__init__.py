"""Generated from proto/quorumlog/v1 by deploy/generate_pb.py. Do not edit."""
