"""trueup: fine-tune a model as a measured run, and say what every token really cost."""

__version__ = "0.1.0"
