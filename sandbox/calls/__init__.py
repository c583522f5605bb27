"""The judge's end of a child: questions and answers, values in and out, on a processor and on a GPU."""
