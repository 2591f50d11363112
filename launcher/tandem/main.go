// Command tandem runs programs as the workers of a job, one a card.
package main

func main() {}
