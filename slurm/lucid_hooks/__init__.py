"""What Lucid's hooks do as root on a node. Only Python's own library (3.9 or later): nodes need not have Lucid."""
