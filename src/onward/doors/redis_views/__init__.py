"""What readers and writers who know only the seeds find in Redis (R-4, S2-5, S3-14)."""
