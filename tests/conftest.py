"""What every test shares: hypothesis without deadlines, since machines are shared and slow."""

from hypothesis import settings

settings.register_profile("hearth", deadline=None)
settings.load_profile("hearth")
