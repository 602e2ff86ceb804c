"""Chapter 08: convolutions and ResNet."""
