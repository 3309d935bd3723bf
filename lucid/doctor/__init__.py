"""What ``lucidctl doctor`` looks at, and what it says to do."""
